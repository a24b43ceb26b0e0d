"""Locks of folders: one process at a time writes into a folder, and notices if it was moved or replaced."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from latebloom.engine.files import make_folder
from latebloom.errors import DISK_IS_FULL, CheckpointError, ConfigError, catch_write_errors
from latebloom.reading import open_plain


@contextmanager
def locked(folder: Path, in_use: str) -> Iterator["Lock"]:
    """Create a folder and lock it for this process while the context lasts; `in_use` is the error if it is locked."""
    with catch_write_errors(folder):
        try:
            make_folder(folder)
            lock = open_plain(folder / ".lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                raise
            raise ConfigError(f"out: {folder} cannot be written ({error.strerror}); choose another folder") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(in_use) from None
        yield Lock(folder / ".lock", lock)
    finally:
        with suppress(OSError):  # the file is empty: nothing is lost, and the system releases the lock in any case
            os.close(lock)


@dataclass(frozen=True)
class Lock:
    """A locked file."""

    path: Path
    descriptor: int

    @property
    def is_held(self) -> bool:
        """Whether the path still leads to the file that this process has locked."""
        return is_at(self.path, os.fstat(self.descriptor), follow=False)

    def check(self, doing: str) -> None:
        """Raise if the folder was moved, removed or replaced, or taken by another process, since it was locked."""
        if not self.is_held:
            raise CheckpointError(
                f"{self.path.parent} was moved, removed or replaced, or taken by another process, while {doing}; this "
                "process stops and writes nothing more into it"
            )


def is_at(path: Path, known: os.stat_result, *, follow: bool = True) -> bool:
    """Return whether a path still leads to a file or folder that is known."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=follow), known)
    except OSError:
        return False


def wait_until_free(folders: Iterable[Path], seconds: float) -> None:
    """Wait until no other process has locked one of the folders, but not longer than some seconds."""
    end = time.monotonic() + seconds
    for folder in folders:
        while time.monotonic() < end and _is_locked(folder):
            time.sleep(0.2)


def _is_locked(folder: Path) -> bool:
    try:
        with open(open_plain(folder / ".lock", os.O_RDONLY)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody has used it yet
        return False
    return False
