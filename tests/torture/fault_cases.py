"""A fault at every call to the file system that a run makes: an error, a torn write, or the end of the process."""

import errno
import random
import tempfile
from functools import cache
from pathlib import Path

from failing_calls import CALLS, EXIT, failing, raise_error
from reference import Shared, assert_same, forked, status_of, train

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.EINTR)
Point = tuple[str, int, int | None]
"""The name of a call, how many such calls come before, and the error (None ends the process)."""


def file_fault(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Let one call fail or end the process; afterwards the run continues. Cases go through all points in turn."""
    points = _points(shared)
    name, after, number = points[shared.number % len(points)]

    def work() -> None:
        with failing(name, after, raise_error(number)):
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
        with tempfile.TemporaryDirectory() as folder, failing(name, -1, lambda: None) as count:
            train(shared, Path(folder) / "run")
        made += [(name, after) for after in range(count())]
    return [(name, after, number) for number in (None, *ERRORS) for name, after in made]
