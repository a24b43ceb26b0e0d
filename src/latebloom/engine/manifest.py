"""The manifest of a finished run: a digest of each file that its numbers depend on, to detect damage."""

from pathlib import Path
from typing import Any

from latebloom.engine.files import digest, write_json
from latebloom.errors import unreadable
from latebloom.reading import LARGEST_FILE, LARGEST_JSON, is_unreadable, parse_json, read_plain

MANIFEST = "manifest.json"
FROM_CHECKPOINT = ("model/config.json", "model/model.safetensors", "evaluation.json", "result.json")
"""The files that can be written again from the last checkpoint."""
FILES = ("config.json", "environment.json", "metrics.jsonl", *FROM_CHECKPOINT)


def write_manifest(folder: Path, result: bytes) -> None:
    """Write the manifest of a run whose `result.json` alone is still to be written, with this content."""
    known = {"result.json": digest(result)}
    write_json(folder / MANIFEST, {name: known.get(name) or digest(read_plain(folder / name)) for name in FILES})


def manifest_digest(folder: Path) -> str | None:
    """Return a digest of the manifest, which stands for all files of the run; None if there is none."""
    content = _content(folder / MANIFEST)
    return None if content is None else digest(content)


def damaged_files(folder: Path, files: tuple[str, ...] = FILES) -> list[str]:
    """Return those of the files that are not as they were when the run finished.

    Runs of the first version have no manifest, and do not say that they have one; of these, the files that are missing
    or empty are returned. Raise if a file cannot be read now, which does not mean that it is damaged.
    """
    digests, result = _read_object(folder / MANIFEST), _read_object(folder / "result.json")
    is_whole = digests is not None and digests.keys() >= {*FILES}
    if not is_whole and ((folder / MANIFEST).exists() or (result or {}).get("manifest")):
        return [MANIFEST]
    digests = digests or {}
    return [name for name in files if not _is_sound(folder / name, digests.get(name))]


def _read_object(file: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is none."""
    content = _content(file, LARGEST_JSON)
    try:
        data = None if content is None else parse_json(content.decode())
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _is_sound(file: Path, expected: str | None) -> bool:
    content = _content(file)
    return bool(content) and expected in (None, digest(content or b""))


def _content(file: Path, limit: int = LARGEST_FILE) -> bytes | None:
    """Return the content of a file; None if there is no such plain file."""
    try:
        return read_plain(file, limit)
    except OSError as error:
        if is_unreadable(error):
            raise unreadable(file, error) from None
        return None
