"""Atomic checkpoints: a checkpoint is complete or absent, even if the process is killed while writing.

A checkpoint is a folder `step-00001500` of safetensors files and one state.json. It is written under a
temporary name, every file and the folder are flushed to disk, and a rename makes it visible in one move.
state.json holds the digest of each file, to detect damage. Nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from latebloom.errors import CheckpointError

FORMAT = 2
READABLE = (1, 2)
"""Formats that this version reads; `older_checkpoints` upgrades the contents of the first."""
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


def save_checkpoint(folder: Path, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], run: str) -> Path:
    """Write `folder/step-N` and return its path. `run` is the hash of the configuration."""
    from safetensors.torch import save

    target = folder / f"step-{state['step']:08d}"
    temporary = folder / f"{_TEMPORARY}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    digests = {}
    try:
        for name, group in tensors.items():
            content = save({key: value.detach().cpu().contiguous() for key, value in group.items()})
            digests[name] = hashlib.sha256(content).hexdigest()
            _write_flushed(temporary / f"{name}.safetensors", content)
        header = {"format": FORMAT, "run": run, "digests": digests, "state": state, "state_digest": _digest(state)}
        _write_flushed(temporary / "state.json", json.dumps(header).encode())
        _flush_folder(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # frees the space on a full disk
        raise
    if target.exists():
        _remove(target)
    os.rename(temporary, target)
    _flush_folder(folder)
    return target


def load_checkpoint(path: Path, runs: Sequence[str]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return tensors and state of a checkpoint; raise if it is damaged or belongs to none of the runs (hashes)."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header = json.loads((path / "state.json").read_bytes())
        if header["format"] not in READABLE:
            known = " and ".join(map(str, READABLE))
            raise CheckpointError(f"checkpoint {path} has format {header['format']}; this version reads {known}")
        if header["run"] not in runs:
            raise CheckpointError(
                f"checkpoint {path} belongs to another configuration ({header['run']}, not {runs[0]}); "
                "choose another folder with --out"
            )
        if header["state_digest"] != _digest(header["state"]):
            raise CheckpointError(f"checkpoint {path} is damaged: state.json was changed after it was written")
        tensors = {}
        for name, digest in header["digests"].items():
            content = (path / f"{name}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise CheckpointError(
                    f"checkpoint {path} is damaged: {name}.safetensors was changed after it was written"
                )
            tensors[name] = load(content)
        return tensors, header["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {path} is damaged or not a checkpoint of latebloom ({type(error).__name__}: {error}); "
            "remove it to continue from the one before"
        ) from error


class CheckpointStore:
    """The checkpoints of one run or stack; only the newest two are kept."""

    def __init__(self, folder: Path, runs: Sequence[str]) -> None:
        """`runs` are hashes of the same run: that of new checkpoints first, then those of earlier versions."""
        self.folder, self.runs = folder, runs

    @property
    def latest(self) -> Path | None:
        return latest_checkpoint(self.folder)

    def load_latest(self) -> tuple[Path, dict[str, dict[str, Tensor]], dict[str, Any]] | None:
        """Return the path, the tensors and the state of the newest checkpoint, or None if there is none."""
        newest = self.latest
        return None if newest is None else (newest, *load_checkpoint(newest, self.runs))

    def save(self, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
        save_checkpoint(self.folder, tensors, state, self.runs[0])
        keep_newest(self.folder)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, or None."""
    return max(_complete(folder), key=_step, default=None)


def keep_newest(folder: Path, count: int = 2) -> None:
    """Remove incomplete checkpoints, and all complete ones except the newest `count`."""
    for path in [*folder.glob(f"{_TEMPORARY}*"), *sorted(_complete(folder), key=_step)[:-count]]:
        _remove(path)


def _remove(path: Path) -> None:
    """Rename the folder before removing it, so that a kill in between leaves no incomplete checkpoint."""
    doomed = path.with_name(f"{_TEMPORARY}gone-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _complete(folder: Path) -> Iterable[Path]:
    return [path for path in folder.glob("step-*") if path.is_dir() and path.name[5:].isdecimal()]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


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
