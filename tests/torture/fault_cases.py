"""A fault at every call to the file system that a run or a stack makes: an error, a torn write, or the end of the
process."""

import errno
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from failing_calls import CALLS, EXIT, failing, raise_error
from reference import Shared, assert_same, forked, status_of, train, train_stack

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.EINTR)
Point = tuple[str, int, int | None]
"""The name of a call, how many such calls come before, and the error (None ends the process)."""


def file_fault(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Let one call of a run fail or end the process; afterwards the run continues."""
    _fail_once(train, folder, shared)
    assert_same(folder, shared.finished)


def file_fault_in_stack(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Let one call of a stack of two runs fail or end the process; afterwards the stack continues."""
    _fail_once(train_stack, folder, shared)
    for name in shared.in_stack:
        assert_same(folder / name, shared.stack / name)


def _fail_once(train: Callable[[Shared, Path], object], folder: Path, shared: Shared) -> None:
    """Train with one fault, and then without; cases go through all points in turn."""
    points = _points(train, shared)
    name, after, number = points[shared.number % len(points)]

    def work() -> None:
        with failing(name, after, raise_error(number)):
            train(shared, folder)

    status = status_of(forked(work))
    said = f"{name}, call {after}, with error {number}: ended with {status}, neither finished nor with one sentence"
    assert status in (0, 3, EXIT), said
    train(shared, folder)


@cache
def _points(train: Callable[[Shared, Path], object], shared: Shared) -> list[Point]:
    """Return every call that the training makes, with every error."""
    made: list[tuple[str, int]] = []
    for name in (*CALLS, "write"):
        with tempfile.TemporaryDirectory() as folder, failing(name, -1, lambda: None) as count:
            train(shared, Path(folder) / "run")
        made += [(name, after) for after in range(count())]
    return [(name, after, number) for number in (None, *ERRORS) for name, after in made]
