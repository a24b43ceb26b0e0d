"""Stacks: runs that are trained as one program, and the folder of their checkpoints.

Each run of a stack has its own folder, as if it was trained alone, but without checkpoints. The checkpoints contain the
whole stack, in `stack-HASH/checkpoints` next to the folders of the runs.
"""

import hashlib
import shlex
from dataclasses import replace

import torch

from latebloom.config import RunConfig
from latebloom.delay.triggers import AtFraction, AtStep
from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.options import DropPath
from latebloom.engine.pause import checkpoint_step, step_reached
from latebloom.engine.settings import Phase
from latebloom.errors import CheckpointError, UnreadableError, unreadable
from latebloom.plugins import origins

WIDEST = 64
"""The widest model for which a stack of one was compared with the ordinary module, which uses cuDNN's LSTM."""


def stack_key(config: RunConfig) -> RunConfig:
    """Return the settings that the runs of a stack must share: all except seed, learning rates (slow attention too),
    averaging of the loss, state noise, delay, and the strength of drop-path and of the bypass loss in runs that have
    them.

    If the phases have different batch sizes, all runs must also switch at the same step. A trigger that measures the
    model cannot guarantee that, so such a run is trained alone.
    """
    if not config.model.can_be_stacked or config.task.stacking == "none":
        return config
    training, delay = config.training, config.delay
    phases = {name: Phase(batch_size=getattr(training, name).batch_size) for name in ("delayed", "full")}
    same_size = delay is None or training.delayed.batch_size == training.full.batch_size
    if same_size:
        phases["delayed"] = phases["full"]
    training = replace(
        training, weigh="answers", state_noise=0.0, restart=True, recurrence_factor=1.0, attention_factor=1.0,
        slow_attention=None, drop_path=None if training.drop_path is None else DropPath(),
        bypass_loss=float(training.bypass_loss > 0), **phases,
    )  # fmt: skip
    shared = replace(config, training=training)
    if delay is None or same_size:
        return replace(shared, seed=0, delay=None)
    return replace(shared, seed=0) if isinstance(delay.until, AtStep | AtFraction) else shared


def is_faster_stacked(config: RunConfig, device: torch.device) -> bool:
    """Return whether one run is trained as a stack of one.

    On a GPU the kernels of stacks have fewer launches, of which the time of a small step consists. The checkpoints are
    those of a run that is trained alone. A user's own components may have parameters without a gradient, or buffers
    that change, which a stack does not allow.
    """
    can_be_stacked = config.model.can_be_stacked and config.task.stacking != "none" and not origins(config)
    return device.type == "cuda" and can_be_stacked and config.model.width <= WIDEST


def stack_hashes(configs: dict[str, RunConfig]) -> list[str]:
    """Return the hash of a stack of these runs, followed by those of earlier versions."""
    versions = zip(*(config.hashes for config in configs.values()), strict=False)
    members = ["\n".join(map(" ".join, zip(configs, hashes, strict=True))) for hashes in versions]
    return [hashlib.sha256(text.encode()).hexdigest()[:12] for text in members]


def stack_folders(configs: dict[str, RunConfig]) -> list[str]:
    """Return the name of the folder of a stack, followed by its names in earlier versions."""
    return [f"stack-{name}" for name in stack_hashes(configs)]


def check_not_in_stack(folder: RunFolder) -> None:
    """Raise if a run was interrupted in a stack: alone it would start over, or from an earlier pause."""
    if folder.is_finished:
        return
    path = folder.path.absolute()
    for parent in path.parents:
        try:
            stacks = list(parent.glob("stack-*/members.json"))
        except OSError as error:
            raise unreadable(parent, error) from None
        for file in stacks:
            try:
                members = read_json(file)
            except UnreadableError:
                raise
            except CheckpointError:
                continue  # damaged or not a stack: nothing to continue
            saved = latest_checkpoint(file.parent / "checkpoints")
            is_member = path.relative_to(parent).as_posix() in members
            if is_member and saved and checkpoint_step(saved) > step_reached(folder):
                command = folder.read_environment("command")["command"]
                raise CheckpointError(
                    f"{folder.path} was trained in a stack of {len(members)} runs; continue with: "
                    f"latebloom {shlex.join(command[1:])}; to train it alone from the beginning, remove {file.parent}"
                )
