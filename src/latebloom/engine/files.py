"""Files that are complete or absent, even if the process is killed or the power fails while they are written.

A file is written under a temporary name and flushed to disk, and a rename makes it visible in one move. The folder is
flushed too, because otherwise a power cut may undo the rename.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY = ".writing-"
"""The beginning of the names of files and folders that are not complete."""


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content, never a part."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        write_flushed(temporary, content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def to_json(data: Any) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


def write_json(path: Path, data: Any) -> None:
    write_file(path, to_json(data))


def make_folder(path: Path) -> None:
    """Create a folder and those above it."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for created in missing:
        flush_folder(created.parent)


def remove_folder(path: Path) -> None:
    """Rename a folder before its files are removed, so that it is complete or absent if the process is killed."""
    doomed = path.with_name(f"{TEMPORARY}gone-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_incomplete(folder: Path) -> None:
    """Remove what processes left that were killed while they wrote; the folder must be locked."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on disk; what had its name is removed, so that a link is not followed."""
    path.unlink(missing_ok=True)
    with naming(path), open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an error of a write or a flush, which the operating system reports without one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def json_digest(data: Any) -> str:
    """Return a digest of plain data, whatever the order of its names."""
    return digest(json.dumps(data, sort_keys=True).encode())
