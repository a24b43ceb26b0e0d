"""The JSON files that a run, a trial or a corpus of a language model keeps in its folder."""

from pathlib import Path
from typing import Any

from latebloom.errors import CheckpointError, unreadable
from latebloom.reading import is_unreadable, parse_json, read_plain


def read_saved(file: Path, *needed: str) -> dict[str, Any]:
    """Return the object in a JSON file; raise if it is damaged, lacks a needed name, or cannot be read now."""
    (data,) = _values(file, [_content(file)])
    if missing := [name for name in needed if name not in data]:
        raise _damaged(file, f"there is no {', '.join(missing)} in it")
    return data


def read_saved_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects in the lines of a file; raise if one is damaged, or if the file cannot be read now."""
    return _values(file, _content(file).splitlines())


def _content(file: Path) -> bytes:
    try:
        return read_plain(file, follow=True)
    except OSError as error:
        if is_unreadable(error):
            raise unreadable(file, error) from None
        raise _damaged(file, error.strerror or str(error)) from None


def _values(file: Path, texts: list[bytes]) -> list[dict[str, Any]]:
    try:
        values = [parse_json(text) for text in texts]
    except ValueError:
        raise _damaged(file, "it is not JSON") from None
    if not all(isinstance(value, dict) for value in values):
        raise _damaged(file, "it holds no settings by name")
    return values


def _damaged(file: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{file} is damaged: {reason}; put it back, or give a new folder")
