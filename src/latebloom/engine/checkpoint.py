"""Atomic checkpoints: a checkpoint is complete or absent, even if the process is killed while writing.

A checkpoint is a folder `step-00001500` of safetensors files and one state.json. It is written under a temporary name,
every file and the folder are flushed to disk, and a rename makes it visible in one move. state.json holds the digest of
each file, to detect damage. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latebloom.errors import CheckpointError

Tensors = dict[str, dict[str, Tensor]]
"""The tensors of a checkpoint, by file and by name."""
FORMAT = 2
KEPT = 2
"""The number of checkpoints of a run that are kept."""
_TEMPORARY = ".writing-"


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    try:
        _write_flushed(temporary, content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def write_json(path: Path, data: Any) -> None:
    write_file(path, (json.dumps(data, indent=2) + "\n").encode())


def remove_folder(path: Path) -> None:
    """Rename a folder before its files are removed, so that it is complete or absent if the process is killed."""
    doomed = path.with_name(f"{_TEMPORARY}gone-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def save_checkpoint(folder: Path, tensors: Tensors, state: dict[str, Any], run: str) -> Path:
    """Write `folder/step-N`, the hash of the run in it, and return its path; remove old and incomplete checkpoints."""
    from safetensors.torch import save

    target = folder / f"step-{state['step']:08d}"
    temporary = folder / f"{_TEMPORARY}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    digests = {}
    try:
        for name, group in tensors.items():
            content = save({key: value.detach().cpu().contiguous() for key, value in group.items()})
            digests[name] = _digest(content)
            _write_flushed(temporary / f"{name}.safetensors", content)
        header = {"format": FORMAT, "run": run, "digests": digests, "state": state, "state_digest": _json_digest(state)}
        _write_flushed(temporary / "state.json", json.dumps(header).encode())
        _flush_folder(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # frees the space on a full disk
        raise
    if target.exists():
        remove_folder(target)
    os.rename(temporary, target)
    _flush_folder(folder)
    for old in _complete(folder)[:-KEPT]:
        remove_folder(old)
    for incomplete in folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(incomplete, ignore_errors=True)
    return target


def load_checkpoint(path: Path, runs: Sequence[str]) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors and state of a checkpoint; raise if it is damaged or belongs to none of the runs (hashes)."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header = json.loads((path / "state.json").read_bytes())
        if header["format"] not in (1, FORMAT):
            raise CheckpointError(f"checkpoint {path} has format {header['format']}; this version reads 1 and {FORMAT}")
        if header["run"] not in runs:
            raise CheckpointError(
                f"checkpoint {path} belongs to another configuration ({header['run']}, not {runs[0]}); "
                "choose another folder with --out"
            )
        state, digests = header["state"], header["digests"]
        contents = {name: (path / f"{name}.safetensors").read_bytes() for name in digests}
        changed = ["state.json"] if header["state_digest"] != _json_digest(state) else []
        changed += [f"{name}.safetensors" for name in digests if _digest(contents[name]) != digests[name]]
        if changed:
            raise CheckpointError(f"checkpoint {path} is damaged: {changed[0]} was changed after it was written")
        tensors = {name: load(content) for name, content in contents.items()}
        return _upgrade(tensors, state) if header["format"] == 1 else (tensors, state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {path} is damaged or not a checkpoint of latebloom ({type(error).__name__}: {error}); "
            "remove it to continue from the one before"
        ) from error


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
    return next(reversed(_complete(folder)), None)


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, the newest last."""
    found = (path for path in folder.glob("step-*") if path.is_dir() and path.name[5:].isdecimal())
    return sorted(found, key=lambda path: int(path.name[5:]))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json_digest(state: Any) -> str:
    return _digest(json.dumps(state, sort_keys=True).encode())


def _write_flushed(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
