"""Pauses: a run stops at a step before its last, is tested there if wanted, and goes on later from its checkpoint.

A paused run is neither finished nor failed. It keeps the schedules of the whole run, so it ends with the same bits as
one that was never paused. The test of a pause is kept in `pause-STEP.json` in the folder of the run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.files import json_digest, write_json
from latebloom.engine.folder import RunFolder, read_json
from latebloom.errors import CheckpointError
from latebloom.evaluation.result import Evaluation

PAUSED = "paused"
"""Marks the state in a checkpoint at which a run was paused: it can be continued alone, in a stack or as a fork."""


@dataclass(frozen=True)
class Stop:
    """Where a run pauses."""

    step: int
    """The number of steps that are done then."""
    test: bool = True
    """Whether the model is tested there; False only saves a checkpoint, from which another run may be forked."""


@dataclass(frozen=True)
class Pause:
    """The test of a run at a pause."""

    step: int
    switch_step: int | None
    """The step of the switch; None if it has not come, or if there is none."""
    withheld: tuple[str, ...]
    """The answers that are not in the loss yet."""
    seconds: float
    """The wall-clock time of training so far."""
    stacked: int
    """How many runs were trained at once."""
    evaluation: Evaluation
    """Accuracy by length, with attention held back as in the next step."""


def write_pause(folder: RunFolder, pause: Pause) -> None:
    """Write the test of a pause, complete or not at all."""
    data = vars(pause) | {"withheld": list(pause.withheld), "evaluation": pause.evaluation.to_json()}
    write_json(_file(folder, pause.step), data | {"digest": json_digest(data)})


def read_pause(folder: RunFolder, step: int) -> Pause | None:
    """Return the test of a run at a pause, or None if there is none; raise if it was changed."""
    file = _file(folder, step)
    if not file.exists():
        return None
    data: dict[str, Any] = read_json(file, "digest", *Pause.__dataclass_fields__)
    digest = data.pop("digest")
    if digest != json_digest(data):
        raise CheckpointError(f"{file} is damaged: it was changed after it was written; remove it to test again")
    evaluation = Evaluation.from_json(data["evaluation"])
    return Pause(**data | {"withheld": tuple(data["withheld"]), "evaluation": evaluation})


def latest_pause(folder: RunFolder) -> Pause | None:
    """Return the last test of a run that is not finished, or None."""
    steps = pause_steps(folder)
    return read_pause(folder, steps[-1]) if steps else None


def pause_steps(folder: RunFolder) -> list[int]:
    """Return the steps of the pauses at which a run was tested."""
    numbers = (file.stem.removeprefix("pause-") for file in folder.path.glob("pause-*.json"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def has_reached(folder: RunFolder, stop: Stop | None) -> bool:
    """Return whether nothing is left to do for a run up to a pause, or to its end."""
    if folder.is_finished or stop is None:
        return folder.is_finished
    return _file(folder, stop.step).exists() if stop.test else step_reached(folder) >= stop.step


def step_reached(folder: RunFolder) -> int:
    """Return the step of the newest checkpoint of a run, or 0."""
    checkpoint = latest_checkpoint(folder.checkpoints)
    return 0 if checkpoint is None else checkpoint_step(checkpoint)


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def paused_step(folder: RunFolder) -> int | None:
    """Return the step at which a run is paused; None if it has not begun, goes on, was interrupted elsewhere, or has a
    damaged checkpoint."""
    checkpoint = latest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        return None
    try:
        state = read_json(checkpoint / "state.json", "state")["state"]
    except CheckpointError:  # the run goes on alone, from the checkpoint before if there is one
        return None
    return checkpoint_step(checkpoint) if isinstance(state, dict) and state.get(PAUSED) else None


def _file(folder: RunFolder, step: int) -> Path:
    return folder.path / f"pause-{step:08d}.json"
