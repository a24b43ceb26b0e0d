"""A fault at every call to the file system that a run makes: an error, a torn write, or the end of the process."""

import builtins
import errno
import io
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reference import Shared, assert_same, forked, status_of, train

CALLS = ("fsync", "replace", "rename", "open", "mkdir", "scandir", "close", "unlink", "stat", "lstat", "listdir")
"""Functions of `os`; `write` stands for the writes of Python's files."""
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.EINTR)
EXIT = 9
Point = tuple[str, int, int | None]
"""The name of a call, how many such calls come before, and the error (None ends the process)."""


def file_fault(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Let one call fail or end the process; afterwards the run continues. Cases go through all points in turn."""
    points = _points(shared)
    name, after, number = points[shared.number % len(points)]

    def work() -> None:
        with _watched(name, after, _failure(number)):
            train(shared, folder)

    status = status_of(forked(work))
    said = f"{name}, call {after}, with error {number}: ended with {status}, neither finished nor with one sentence"
    assert status in (0, 3, EXIT), said
    train(shared, folder)
    assert_same(folder, shared.finished)


@cache
def _points(shared: Shared) -> list[Point]:
    """Return every call that a run makes, with every error."""
    made: list[tuple[str, int]] = []
    for name in (*CALLS, "write"):
        with tempfile.TemporaryDirectory() as folder, _watched(name, -1, lambda: None) as count:
            train(shared, Path(folder) / "run")
        made += [(name, after) for after in range(count())]
    return [(name, after, number) for number in (None, *ERRORS) for name, after in made]


def _failure(number: int | None) -> Callable[[], None]:
    def fail() -> None:
        if number is None:
            os._exit(EXIT)
        raise OSError(number, os.strerror(number))

    return fail


@contextmanager
def _watched(name: str, after: int, fail: Callable[[], None]) -> Iterator[Callable[[], int]]:
    """Call `fail` in place of the call that comes after so many others; yield how many there have been."""
    calls = 0

    def is_due() -> bool:
        nonlocal calls
        calls += 1
        return calls == after + 1

    with ExitStack() as patched:
        if name == "write":
            opened = _opening(is_due, fail)
            patched.enter_context(patch.object(builtins, "open", opened))
            patched.enter_context(patch.object(io, "open", opened))
        else:
            original = getattr(os, name)

            def call(*arguments: Any, **options: Any) -> Any:
                if is_due():
                    fail()
                return original(*arguments, **options)

            patched.enter_context(patch.object(os, name, call))
        yield lambda: calls


def _opening(is_due: Callable[[], bool], fail: Callable[[], None]) -> Callable[..., Any]:
    """Return an `open` whose files write only the first half of what is due to fail."""
    original = io.open

    class Torn(io.FileIO):
        def write(self, content: Any, /) -> int:
            if is_due():
                super().write(bytes(content)[: len(content) // 2])
                fail()
            return super().write(content)

    def opened(file: Any, mode: str = "r", *options: Any, **named: Any) -> Any:
        if not set(mode) & set("wxa") or "+" in mode:
            return original(file, mode, *options, **named)
        buffered = io.BufferedWriter(Torn(file, mode.strip("bt")))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, "utf-8", write_through=True)

    return opened
