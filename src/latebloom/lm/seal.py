"""Digests of what libraries write for a run of a language model, so that changed and lost files are noticed.

A checkpoint has them in a file of its own, written last; a finished run has them in its result.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from latebloom.engine.files import flush_folder, json_digest, write_json
from latebloom.errors import DamagedCheckpointError, unreadable
from latebloom.lm.saved import read_saved
from latebloom.reading import is_unreadable, open_plain

DIGESTS = "digests.json"


def seal(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Flush files in a folder to disk, so that none is lost in a power cut, and return their digests by name."""
    digests = {}
    for file in sorted(files):
        descriptor = os.open(file, os.O_RDONLY)
        with open(descriptor, "rb") as opened:
            os.fsync(descriptor)
            digests[file.relative_to(folder).as_posix()] = hashlib.file_digest(opened, "sha256").hexdigest()
    for inner in {file.parent for file in files}:
        flush_folder(inner)
    return digests


def changed_file(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Return the first of the files that is missing or was changed, or None; raise if one cannot be read now."""
    for name, expected in digests.items():
        try:
            with open(open_plain(folder / name, os.O_RDONLY, follow=True), "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            if is_unreadable(error):
                raise unreadable(folder / name, error) from None
            return name
        if found != expected:
            return name
    return None


def seal_checkpoint(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != DIGESTS]
    write_json(folder / DIGESTS, seal(folder, files))


def check_checkpoint(folder: Path) -> None:
    """Raise if a file of a checkpoint is missing or was changed, or has no digest."""
    digests = read_saved(folder / DIGESTS)
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    name = next(iter(sorted(files - digests.keys() - {DIGESTS})), None) or changed_file(folder, digests)
    if name is not None:
        raise DamagedCheckpointError(f"{folder} is damaged: {name} is missing or was changed after it was written")


def seal_result(folder: Path, result: dict[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Return a result with the digests of the run's files and one of its own."""
    result = result | {"digests": seal(folder, files)}
    return result | {"digest": json_digest(result)}


def damage_of_result(file: Path) -> str | None:
    """Return the name of a file of a finished run that is missing or was changed, or None.

    Runs of earlier versions have no digests.
    """
    result = read_saved(file)
    digest = result.pop("digest", None)
    if digest is None and "digests" not in result:
        return None
    if digest != json_digest(result):
        return file.name
    return changed_file(file.parent, result["digests"])
