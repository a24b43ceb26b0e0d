"""The folder of the socket through which workers are started, removed even if all processes are killed at once."""

import fcntl
import multiprocessing
import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

PREFIX = "latebloom-sockets-"
"""The beginning of the names of these folders, among the temporary files."""


def keep_sockets_apart() -> None:
    """Give multiprocessing a folder for its socket, and remove those of studies that were killed.

    Its own folder pymp-* stays for ever if all processes are killed at once. Here a lock tells which one is in use.
    """
    settings: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    if settings.get("tempdir") is not None:
        return
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, is in use, or is about to be
            _remove_unused(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / ".new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)  # open as long as this process lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(folder / ".new", folder / ".lock")  # so that no other process finds it before it is locked
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
    settings["tempdir"] = str(folder)


def _remove_unused(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    lock = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
