"""The checkpoints of a run of a language model, which Transformers' Trainer writes: which one a run continues from."""

import os
import shutil
import warnings
from pathlib import Path

from latebloom.errors import CheckpointError, DamagedCheckpointError, Note, unreadable
from latebloom.lm.saved import read_saved
from latebloom.lm.seal import DIGESTS, check_checkpoint, damage_of_result
from latebloom.reading import read_json_file

CHECKPOINTS, ENVIRONMENT, RESULT = "checkpoints", "environment.json", "result.json"
SEALED = "sealed"
"""The name in the environment that says that checkpoints and the result have digests."""


def is_first_process() -> bool:
    """Return whether this is the first of the processes that torchrun or Accelerate has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def newest_checkpoint(folder: Path, *, with_digests: bool = False) -> Path | None:
    """Return the newest complete checkpoint that is not damaged, and remove incomplete ones.

    Trainer writes its state last, and after it come the digests. Runs of earlier versions have none.
    """
    complete = []
    for one in folder.glob("checkpoint-*"):
        try:
            read_json_file(one / "trainer_state.json", follow=True)
            if with_digests:
                read_json_file(one / DIGESTS, follow=True)
            complete.append(one)
        except (FileNotFoundError, ValueError):
            if is_first_process():
                shutil.rmtree(one, ignore_errors=True)
        except OSError as error:  # it may be complete
            raise unreadable(one, error) from None
    complete.sort(key=step_of)
    while with_digests and complete:
        try:
            check_checkpoint(complete[-1])
            break
        except DamagedCheckpointError as error:
            complete.pop()
            if not complete:
                raise DamagedCheckpointError(f"{error}; remove {folder} to train from the beginning") from None
            warnings.warn(f"{error}; the run continues from {complete[-1].name}", Note, stacklevel=2)
    return complete[-1] if complete else None


def is_sealed(folder: Path) -> bool:
    """Return whether the checkpoints of a run have digests."""
    if not (folder / ENVIRONMENT).exists():
        return any(folder.glob(f"{CHECKPOINTS}/*/{DIGESTS}"))
    return read_saved(folder / ENVIRONMENT).get(SEALED) is True


def reopen_if_damaged(folder: Path, steps: int) -> bool:
    """Make a finished run unfinished if its files are damaged and its last checkpoint restores them."""
    damaged = damage_of_result(folder / RESULT)
    if damaged is None:
        return False
    newest = newest_checkpoint(folder / CHECKPOINTS, with_digests=is_sealed(folder))
    if newest is None or step_of(newest) < steps:
        raise CheckpointError(
            f"{folder} is damaged: {damaged} is missing or was changed after training, and there is no checkpoint of "
            "the last step; train the run again in a new folder"
        )
    warnings.warn(f"{folder}: {damaged} was damaged and is restored from the last checkpoint", Note, stacklevel=2)
    (folder / RESULT).unlink(missing_ok=True)
    return True


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
