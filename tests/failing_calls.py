"""Errors of the operating system at a chosen call to the file system."""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

CALLS = ("fsync", "replace", "rename", "open", "mkdir", "scandir", "close", "unlink", "stat", "lstat", "listdir")
"""Functions of `os`."""
EXIT = 9
"""The status of a process that such a call ends."""


def raise_error(number: int | None) -> Callable[[], None]:
    """Return a function that raises an error of the operating system, or ends the process."""

    def fail() -> None:
        if number is None:
            os._exit(EXIT)
        raise OSError(number, os.strerror(number))

    return fail


@contextmanager
def failing(name: str, after: int, fail: Callable[[], None]) -> Iterator[Callable[[], int]]:
    """Call `fail` in place of the call that comes after so many others; yield how many there have been.

    `write` stands for the writes of Python's files, of which one that fails has written the first half.
    """
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
