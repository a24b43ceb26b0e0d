"""Many runs on one GPU: runs of one shape are trained as one program, in waves that fit into its memory."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from latebloom.config import OtherRun, RunConfig
from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.files import remove_folder, remove_incomplete
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.lock import wait_until_free
from latebloom.engine.loop import Progress, run, run_stacked, run_until
from latebloom.engine.memory import fits_clearly, runs_that_fit
from latebloom.engine.pause import Stop, checkpoint_step, has_reached, paused_step, step_reached
from latebloom.engine.stacks import stack_key
from latebloom.errors import CheckpointError, ConfigError, InterruptedRun, LatebloomError

Configs = dict[str, RunConfig]
Observe = Callable[[str, Progress], None]
"""Receives the name of a run and its progress."""
Stops = Mapping[str, Stop]
"""Where runs pause, by name; the others are trained to their end."""
NO_STOPS: Stops = {}
PATIENCE = 60.0
"""Seconds to wait for a run that another process is training: the workers of a killed study save before they end."""
MOST_AT_ONCE = 256
"""More runs are hardly faster, and each keeps two files open."""


def run_in_stacks(
    configs: Configs,
    folder: Path,
    device: torch.device,
    observe: Observe,
    fit: Callable[[RunConfig, torch.device], int] = runs_that_fit,
    stops: Stops = NO_STOPS,
    at_once: int = 1,
    train_at_once: Callable[[list[Configs], int], dict[str, str]] | None = None,
) -> dict[str, str]:
    """Train every configuration in `folder/name` to its end or its pause; return the reason for each that failed.

    Waves are trained one after the other in this process, or by `train_at_once`, which gets their number at once:
    `at_once`, or fewer if the largest of them do not fit into the memory together.
    """
    _remove_finished_stacks(folder)
    known: dict[str, int] = {}

    def fitting(config: RunConfig, wanted: int) -> int:
        """Return how many runs fit; `at_once` times the wanted number, without a measurement, if they clearly do."""
        if device.type == "cuda" and fits_clearly(config, device, wanted * at_once):
            return wanted * at_once
        key = stack_key(config).hash
        if key not in known:
            known[key] = _fit_or_one(lambda config, wanted: fit(config, device), config, wanted)
        return known[key]

    waves = plan_waves(configs, folder, fitting, stops)
    if train_at_once is not None and at_once > 1 and len(waves) > 1:
        shares = sorted((_share(wave, fitting) for wave in waves), reverse=True)
        together = sum(total <= 1 for total in accumulate(shares))
        if (number := min(at_once, together)) > 1:
            # The longest first, so that none is alone at the end.
            return train_at_once(sorted(waves, key=_steps, reverse=True), number)
    failures: dict[str, str] = {}
    for wave in waves:
        failed = train_wave(wave, folder, device, observe, stop_of(wave, stops))
        for name in failed:
            observe(name, Progress.of_failed(wave[name].training.steps))
        failures |= failed
    return failures


def _share(wave: Configs, fitting: Callable[[RunConfig, int], int]) -> float:
    """Return the share of the memory that a wave takes; a run of another kind is not measured, and counts for none,
    because it is trained beside others only where the user asks for it."""
    largest = max(wave.values(), key=_noise)
    return 0.0 if isinstance(largest, OtherRun) else len(wave) / fitting(largest, len(wave))


def _noise(config: RunConfig) -> float:
    """Return the state noise, which takes memory too."""
    return 0.0 if isinstance(config, OtherRun) else config.training.state_noise


def _steps(wave: Configs) -> int:
    """Return the steps of the runs of a wave."""
    return next(iter(wave.values())).training.steps


def _remove_finished_stacks(folder: Path) -> None:
    """Remove what stacks left that were killed while they removed their own checkpoints."""
    remove_incomplete(folder)
    for stack in folder.glob("stack-*"):
        with suppress(CheckpointError):  # not a stack
            members = read_json(stack / "members.json")
            if members and all(RunFolder(folder / name).is_finished for name in members):
                remove_folder(stack)


def train_wave(
    wave: Configs, folder: Path, device: torch.device, observe: Observe, stop: Stop | None = None
) -> dict[str, str]:
    """Train runs of one shape as one program, to their end or a pause; return the reason for each run that failed."""
    wait_until_free([folder / name for name in wave], PATIENCE)
    try:
        if len(wave) > 1:
            outcome = run_stacked(wave, folder, device, observe=observe, stop=stop)
            return {name: str(error) for name, error in outcome.failed.items()}
        ((name, config),) = wave.items()
        if isinstance(config, OtherRun):
            config.train(folder / name, folder, str(device), lambda seen: observe(name, seen))
            return {}
        where: dict[str, Any] = {"device": str(device), "observe": lambda seen: observe(name, seen)}
        if stop is None:
            run(config, folder / name, **where)
        else:
            run_until(config, folder / name, stop, **where)
        return {}
    except InterruptedRun:
        raise InterruptedRun(f"stopped; the progress is saved in {folder}") from None
    except LatebloomError as error:
        return dict.fromkeys(wave, str(error))
    except Exception as error:
        log = log_error(folder / next(iter(wave)), traceback.format_exc())
        return dict.fromkeys(wave, f"{type(error).__name__}, see {log}")


def log_error(folder: Path, text: str) -> Path:
    """Write an error into the folder of a run, and return the path of the file."""
    log = folder / "error.log"
    with suppress(OSError):  # the reason is reported even if the log cannot be written
        folder.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    return log


def unfinished(configs: Configs, folder: Path, stops: Stops = NO_STOPS) -> Configs:
    """Return the runs that have not reached their end or their pause."""
    return {
        name: config for name, config in configs.items() if not has_reached(RunFolder(folder / name), stops.get(name))
    }


def stop_of(wave: Configs, stops: Stops) -> Stop | None:
    """Return where the runs of a wave pause, which is the same for all of them."""
    return stops.get(next(iter(wave)))


def interrupted_stacks(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the hash of each run of every stack that can be continued, by name, and the step of its checkpoint."""
    for stack in sorted(folder.glob("stack-*")):
        saved = latest_checkpoint(stack / "checkpoints")
        if saved is None:
            continue
        members: dict[str, str] = read_json(stack / "members.json")
        # A stack that was killed after it was dissolved is of no use: its runs go on from their own checkpoints.
        if any(step_reached(RunFolder(folder / name)) < checkpoint_step(saved) for name in members):
            yield members, checkpoint_step(saved)


def plan_waves(
    configs: Configs, folder: Path, fit: Callable[[RunConfig, int], int], stops: Stops = NO_STOPS
) -> list[Configs]:
    """Return the runs to train at once: interrupted stacks, interrupted single runs, then the rest by shape, pause and
    step, as many at once as fit.

    `fit` is called with a run of a shape and the number of runs that are wanted.
    """
    left = unfinished(configs, folder, stops)
    waves: list[Configs] = []
    for members, _ in interrupted_stacks(folder):
        # Finished members too: a stack may have been killed while it wrote its results.
        is_wanted = all(name in configs and configs[name].matches(wanted) for name, wanted in members.items())
        is_wanted &= len({stops.get(name) for name in members}) == 1
        if is_wanted and any(name in left for name in members):
            waves.append({name: configs[name] for name in members})
            left = {name: config for name, config in left.items() if name not in members}
    paused = {name: paused_step(RunFolder(folder / name)) for name in left}
    for name in list(left):
        if paused[name] is None and latest_checkpoint(RunFolder(folder / name).checkpoints) is not None:
            waves.append({name: left.pop(name)})
    shapes: dict[object, Configs] = {}
    for name, config in left.items():
        if isinstance(config, OtherRun):  # it has no stacks
            waves.append({name: config})
            continue
        shapes.setdefault((stack_key(config).hash, stops.get(name), paused[name]), {})[name] = config
    for shape in shapes.values():
        names = list(shape)
        largest = max(shape.values(), key=_noise)
        at_once = 1 if len(names) == 1 else min(MOST_AT_ONCE, _fit_or_one(fit, largest, len(names)))
        count = -(-len(names) // at_once)
        even = -(-len(names) // count)  # 100 runs of which 60 fit: two waves of 50
        waves += [{name: shape[name] for name in names[i : i + even]} for i in range(0, len(names), even)]
    return waves


def _fit_or_one(fit: Callable[[RunConfig, int], int], config: RunConfig, wanted: int) -> int:
    """Return how many of the wanted runs fit, or 1 for runs that do not fit, so that each of them fails alone."""
    try:
        return fit(config, wanted)
    except ConfigError:
        return 1
