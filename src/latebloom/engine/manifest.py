"""The manifest of a finished run: a digest of each file that its numbers depend on, to detect damage."""

import json
from pathlib import Path

from latebloom.engine.files import digest, write_json

MANIFEST = "manifest.json"
FROM_CHECKPOINT = ("model/config.json", "model/model.safetensors", "evaluation.json", "result.json")
"""The files that can be written again from the last checkpoint."""
FILES = ("config.json", "environment.json", "metrics.jsonl", *FROM_CHECKPOINT)


def write_manifest(folder: Path, result: bytes) -> None:
    """Write the manifest of a run whose `result.json` alone is still to be written, with this content."""
    known = {"result.json": digest(result)}
    write_json(folder / MANIFEST, {name: known.get(name) or digest((folder / name).read_bytes()) for name in FILES})


def damaged_files(folder: Path, files: tuple[str, ...] = FILES) -> list[str]:
    """Return those of the files that are not as they were when the run finished.

    Runs of version 0.1 have no manifest; of these, the files that are missing or empty are returned.
    """
    try:
        digests = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        digests = {}
    except (OSError, ValueError):
        return [MANIFEST]
    if not isinstance(digests, dict):
        return [MANIFEST]
    contents = {name: _read_if_there(folder / name) for name in files}
    return [name for name, found in contents.items() if not found or digests.get(name) not in (None, digest(found))]


def _read_if_there(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
