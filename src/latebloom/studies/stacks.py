"""Many runs on one GPU: those of one shape as one program, in as many waves as its memory makes necessary."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from latebloom.config import RunConfig
from latebloom.errors import InterruptedRun, LatebloomError
from latebloom.training.checkpoint import latest_checkpoint
from latebloom.training.folder import RunFolder
from latebloom.training.loop import Progress, run
from latebloom.training.memory import runs_that_fit
from latebloom.training.stacked_run import run_stacked
from latebloom.training.stacked_trainer import stack_key

Configs = dict[str, RunConfig]


def run_in_stacks(
    configs: Configs,
    folder: Path,
    device: torch.device,
    observe: Callable[[str, Progress], None],
    fit: Callable[[RunConfig, torch.device], int] = runs_that_fit,
) -> dict[str, str]:
    """Train every configuration in `folder/name` that is not finished; why those failed that did."""
    failures: dict[str, str] = {}
    for wave in plan_waves(configs, folder, lambda config: fit(config, device)):
        try:
            if len(wave) > 1:
                outcome = run_stacked(wave, folder, device, observe=observe)
                failures |= {name: str(error) for name, error in outcome.failed.items()}
            else:
                ((name, config),) = wave.items()
                run(config, folder / name, device=str(device), observe=lambda seen, name=name: observe(name, seen))
        except InterruptedRun:
            raise InterruptedRun(f"stopped; what was reached is saved in {folder}") from None
        except LatebloomError as error:
            failures |= dict.fromkeys(wave, str(error))
    return failures


def plan_waves(configs: Configs, folder: Path, fit: Callable[[RunConfig], int]) -> list[Configs]:
    """Which runs to train at once: stacks that were interrupted as they were, runs that were interrupted alone, and
    the rest by shape, as many at once as fit."""
    left = {name: config for name, config in configs.items() if not RunFolder(folder / name).is_finished}
    waves: list[Configs] = []
    for members in _interrupted_stacks(folder):
        if all(name in left and left[name].hash == wanted for name, wanted in members.items()):
            waves.append({name: left.pop(name) for name in members})
    for name in list(left):
        if latest_checkpoint(RunFolder(folder / name).checkpoints) is not None:
            waves.append({name: left.pop(name)})
    shapes: dict[str, Configs] = {}
    for name, config in left.items():
        shapes.setdefault(stack_key(config).hash, {})[name] = config
    for shape in shapes.values():
        names = list(shape)
        at_once = len(names) if len(names) == 1 else fit(shape[names[0]])
        count = -(-len(names) // at_once)
        even = -(-len(names) // count)  # 100 runs of which 60 fit: two waves of 50
        waves += [{name: shape[name] for name in names[i : i + even]} for i in range(0, len(names), even)]
    return waves


def _interrupted_stacks(folder: Path) -> list[dict[str, str]]:
    """The members, name and hash, of each stack in a folder that has a checkpoint."""
    found = []
    for stack in sorted(folder.glob("stack-*")):
        if latest_checkpoint(stack / "checkpoints") is not None:
            found.append(json.loads((stack / "members.json").read_text()))
    return found
