"""Atomic checkpoints: a checkpoint is complete or absent, even if the process is killed while writing.

A checkpoint is a folder `step-00001500` of safetensors files and one state.json. It is written under a temporary name,
every file and the folder are flushed to disk, and a rename makes it visible in one move. state.json holds the digest of
each file, to detect damage. Nothing is ever unpickled.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latebloom.engine.files import (
    TEMPORARY,
    digest,
    flush_folder,
    json_digest,
    remove_folder,
    remove_incomplete,
    write_flushed,
)
from latebloom.errors import CheckpointError, DamagedCheckpointError, Note, UnreadableError, first_line, unreadable
from latebloom.reading import is_unreadable, read_json_file, read_plain

Tensors = dict[str, dict[str, Tensor]]
"""The tensors of a checkpoint, by file and by name."""
FORMAT = 2
KEPT = 2
"""The number of checkpoints of a run that are kept."""


def save_checkpoint(folder: Path, tensors: Tensors, state: dict[str, Any], run: str) -> Path:
    """Write `folder/step-N`, the hash of the run in it, and return its path; remove old and incomplete checkpoints."""
    from safetensors.torch import save

    target = folder / f"step-{state['step']:08d}"
    temporary = folder / f"{TEMPORARY}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()  # not the folder above it, which may have been moved away meanwhile
    digests = {}
    try:
        for name, group in tensors.items():
            content = save({key: value.detach().cpu().contiguous() for key, value in group.items()})
            digests[name] = digest(content)
            write_flushed(temporary / f"{name}.safetensors", content)
        header = {"format": FORMAT, "run": run, "digests": digests, "state": state, "state_digest": json_digest(state)}
        write_flushed(temporary / "state.json", json.dumps(header).encode())
        flush_folder(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # frees the space on a full disk
        raise
    if target.exists():
        remove_folder(target)
    os.rename(temporary, target)
    flush_folder(folder)
    for old in complete_checkpoints(folder)[:-KEPT]:
        remove_folder(old)
    remove_incomplete(folder)
    return target


def load_checkpoint(path: Path, runs: Sequence[str]) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors and state of a checkpoint; raise if it is damaged or belongs to none of the runs (hashes)."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header = read_json_file(path / "state.json")
        if header["format"] not in (1, FORMAT):
            raise CheckpointError(f"checkpoint {path} has format {header['format']}; this version reads 1 and {FORMAT}")
        if header["run"] not in runs:
            raise CheckpointError(
                f"checkpoint {path} belongs to another configuration ({header['run']}, not {runs[0]}); "
                "choose another folder with --out"
            )
        state, digests = header["state"], header["digests"]
        contents = {name: read_plain(path / f"{name}.safetensors") for name in digests}
        changed = ["state.json"] if header["state_digest"] != json_digest(state) else []
        changed += [f"{name}.safetensors" for name in digests if digest(contents[name]) != digests[name]]
        if changed:
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {changed[0]} was changed after it was written")
        if not isinstance(state, dict):
            raise TypeError("its state is not a table of names")
        tensors = {name: load(content) for name, content in contents.items()}
        return _upgrade(tensors, state) if header["format"] == 1 else (tensors, state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, OSError) and is_unreadable(error):
            raise unreadable(path, error) from error
        raise DamagedCheckpointError(
            f"checkpoint {path} is damaged or not a checkpoint of latebloom ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def fitting(path: Path, remedy: str = "; choose another folder with --out") -> Iterator[None]:
    """Turn the errors of a checkpoint that does not fit the run into one sentence."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(
            f"checkpoint {path} does not fit this run ({type(error).__name__}: {first_line(error)}){remedy}"
        ) from error


def load_newest(paths: Sequence[Path], runs: Sequence[str]) -> tuple[Path, Tensors, dict[str, Any]]:
    """Return path, tensors and state of the last of the checkpoints, or of the one before if it is refused."""
    *older, newest = paths
    try:
        return newest, *load_checkpoint(newest, runs)
    except UnreadableError:
        if not older:
            raise
        reason = f"checkpoint {newest} cannot be read now"
    except DamagedCheckpointError as error:
        if not older:
            raise DamagedCheckpointError(f"{error}; remove {newest.parent} to train from the beginning") from error
        reason = str(error)
    warnings.warn(f"{reason}; the run continues from {older[-1].name}", Note, stacklevel=4)
    return load_newest(older, runs)


def _upgrade(tensors: Tensors, state: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Return a checkpoint of format 1 in the current format.

    There a single run had its own format without an axis of runs, and stacks called their runs members.
    """
    trainer = state["trainer"]
    if "members" in trainer:
        return tensors, {**state, "trainer": {"step": trainer["step"], "runs": trainer["members"]}}
    delay = trainer["delay"] or {"switch_step": None, "switch_reason": None, "memory": {}}
    run = {name: delay[name] for name in ("switch_step", "switch_reason", "memory")}
    run |= {"summed": trainer["summed"], "failed_step": None, "phase_done": "", "rate_done": 0.0}
    tensors = {**tensors, "sums": {"sums": tensors["sums"]["sums"][None], "first_bad": torch.full((1,), -1)}}
    trainer = {"step": trainer["step"], "runs": [run]}
    return tensors, {**state, "trainer": trainer, "journals": [state["journal"]]}


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, or None."""
    return next(reversed(complete_checkpoints(folder)), None)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, the newest last."""
    found = (
        path for path in folder.glob("step-*") if path.is_dir() and path.name[5:].isdecimal() and len(path.name) < 30
    )
    return sorted(found, key=lambda path: int(path.name[5:]))
