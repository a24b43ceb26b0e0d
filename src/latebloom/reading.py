"""Reading of files that another program, or another person, may have written.

Only plain files of a bounded size are read, and JSON of a bounded depth. A pipe would make the program wait for ever, a
device would fill its memory, and a link may point out of the folder.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

LARGEST_JSON = 64 * 2**20
"""Bytes. The largest file of a run is its metrics.jsonl, which is not read as one JSON value."""
DEEPEST = 50
"""Levels of JSON; a configuration has six."""
LARGEST_FILE = 64 * 2**30
_OPENED_BY_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Where a shell puts the pipe of `<(...)`."""


class NotPlainFileError(OSError):
    """A folder, link, pipe or device in the place of a file, or a file that is too large."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"it is {what}, not a plain file")
        self.filename, self.strerror = str(path), f"it is {what}, not a plain file"

    def __str__(self) -> str:
        return f"{self.strerror}: {self.filename!r}"


def is_unreadable(error: OSError) -> bool:
    """Return whether a file may be whole although it could not be read: it is there, and it is a plain one."""
    return not isinstance(error, FileNotFoundError | NotADirectoryError | NotPlainFileError)


def read_plain(path: Path, limit: int = LARGEST_FILE, *, follow: bool = False) -> bytes:
    """Return the content of a plain file; raise OSError for anything else. Links are followed only with `follow`."""
    descriptor = open_plain(path, os.O_RDONLY, follow=follow)
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > limit:
            raise NotPlainFileError(path, f"larger than {limit:,} bytes")
        return file.read()


def open_plain(path: Path, flags: int, *, follow: bool = False) -> int:
    """Open a plain file and return its descriptor; it never waits, as opening a pipe would."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if not follow and path.is_symlink():
            raise NotPlainFileError(path, "a link") from None
        if (what := _kind(path)) is not None:
            raise NotPlainFileError(path, what) from None
        raise error from None
    if what := _name(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFileError(path, what)
    return descriptor


def read_json_file(path: Path, *, follow: bool = False) -> Any:
    """Return the value in a JSON file; raise OSError or ValueError."""
    is_given_pipe = follow and str(path).startswith(_OPENED_BY_SHELL)
    if is_given_pipe:
        with open(path, "rb") as file:
            content = file.read(LARGEST_JSON)
    else:
        content = read_plain(path, LARGEST_JSON, follow=follow)
    return parse_json(content.decode())


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; raise ValueError if it is not JSON, nested too deeply, or has too long a number."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level, depth = [value], 0
    while level := [
        inner
        for one in level
        if isinstance(one, dict | list)
        for inner in (one.values() if isinstance(one, dict) else one)
    ]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")
    return value


TRACKERS_FOLDERS = ("tensorboard", "wandb", "trackio")
"""What trackers write into the folder of a run; W&B makes links there."""


def find_link(folder: Path, levels: int) -> str | None:
    """Return the path of the first link or special file in a folder and so many levels below it, with what it is.

    The insides of the folders of trackers are not looked at.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # there is no such folder yet
        return None
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if levels > 0 and entry.name not in TRACKERS_FOLDERS and (found := find_link(Path(entry.path), levels - 1)):
                return found
        elif not entry.is_file(follow_symlinks=False):
            return f"{entry.path} is {_kind(Path(entry.path)) or 'not a plain file'}"
    return None


def _kind(path: Path) -> str | None:
    try:
        return _name(os.lstat(path).st_mode)
    except OSError:
        return None


def _name(mode: int) -> str | None:
    """Return what a file is, or None for a plain one."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return None if stat.S_ISREG(mode) else kinds.get(stat.S_IFMT(mode), "a device")
