"""A worker of a Ray cluster: it trains a run or a stack of runs, and reports the progress.

A worker that can access the folder of the study trains in it. Another one trains in a temporary folder, and its files
are sent back when it ends or stops.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import torch

from latebloom.engine.files import TEMPORARY
from latebloom.engine.memory import runs_that_fit
from latebloom.engine.outcome import Progress
from latebloom.engine.process_state import stop_requests
from latebloom.errors import InterruptedRun
from latebloom.studies.scheduler import Order, train_order

SECONDS_BETWEEN_REPORTS = 0.2
SECONDS_TO_ANSWER = 5.0
"""How long to wait for the coordinator, before the same is tried again."""

Parcel = dict[str, bytes]
"""The contents of files, by path relative to the folder of all runs."""


@dataclass(frozen=True)
class Done:
    """The result of a worker."""

    failures: dict[str, str]
    progress: dict[str, Progress]
    """The last progress of each run, because the coordinator may have missed it."""
    parcel: Parcel | None
    """The files, from a worker that cannot access the folder of the study."""
    stopped: bool


class Coordinator:
    """A Ray actor that passes progress from the workers to the driver, and the request to stop to the workers.

    It may be restarted at any time, without its state; both sides tell it again what it must know.
    """

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}
        self._in_training: set[str] = set()
        self._is_stopping = False

    def report(self, wave: str, progress: dict[str, Progress]) -> bool:
        """Record the progress of a wave, named after its first run; return whether it should stop."""
        self._in_training.add(wave)
        self._progress |= progress
        return self._is_stopping

    def exchange(self, is_stopping: bool) -> tuple[dict[str, Progress], set[str]]:
        """Return the progress since the last call and the waves that have reported; make workers stop if asked to."""
        progress, self._progress = self._progress, {}
        self._is_stopping = is_stopping
        return progress, self._in_training


def runs_that_fit_there(order: Order) -> int:
    """Return how many such runs fit into the memory of a worker's GPU."""
    (config,) = order.read().values()
    return runs_that_fit(config, torch.device("cuda"))


def train(
    order: Order, token: Path, kind: str, folders: list[str], parcel: Parcel, coordinator: Any, command: list[str]
) -> Done:
    """Train runs in a worker of the cluster."""
    torch.set_num_threads(1)
    sys.argv = command  # a run records the command of the user, not that of the Ray worker
    latest: dict[str, Progress] = {}
    # Signals are handled outside the run too, so that a folder is packed and sent completely.
    with stop_requests(), _place(token, parcel, folders) as place:
        failures, stopped = {}, False
        try:
            with _reporting(coordinator, next(iter(order.configs)), latest):
                failures = train_order(order, place, torch.device(kind), latest.__setitem__)
        except InterruptedRun:
            stopped = True
        reasons = {name: reason.replace(str(place), str(token.parent)) for name, reason in failures.items()}
        return Done(reasons, latest, None if place == token.parent else pack(place, folders), stopped)


@contextmanager
def _place(token: Path, parcel: Parcel, folders: list[str]) -> Iterator[Path]:
    """Yield the folder to train in: that of the study if it is accessible, else a temporary copy."""
    if token.exists():
        yield token.parent
        return
    with TemporaryDirectory(prefix="latebloom-") as place:
        unpack(parcel, Path(place), folders)
        yield Path(place)


@contextmanager
def _reporting(coordinator: Any, wave: str, latest: dict[str, Progress]) -> Iterator[None]:
    """Report the latest progress to the coordinator while the context lasts; stop the run if it says so.

    A thread sends the reports, because Ray gives the core of a task away while its main thread waits for an answer.
    """
    import ray
    from ray.exceptions import RayError

    has_ended = Event()

    def report_regularly() -> None:
        sent: dict[str, Progress] = {}
        while not has_ended.is_set():
            now = latest.copy()
            news = {name: progress for name, progress in now.items() if sent.get(name) is not progress}
            with suppress(RayError):  # the coordinator may be restarting; it gets the same again
                answer = ray.get(coordinator.report.remote(wave, news), timeout=SECONDS_TO_ANSWER)
                sent = now
                if answer and not has_ended.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
            has_ended.wait(SECONDS_BETWEEN_REPORTS)

    thread = Thread(target=report_regularly, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def pack(root: Path, names: Sequence[str]) -> Parcel:
    """Return the files in the folders `root/name`; missing folders are left out."""
    files = [file for name in names for file in sorted((root / name).rglob("*")) if file.is_file()]
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in files if file.name != ".lock"}


def unpack(parcel: Parcel, root: Path, names: Sequence[str]) -> None:
    """Replace the folders `root/name` by those in the parcel, each atomically, in the order of the names."""
    with TemporaryDirectory(prefix=f"{TEMPORARY}arriving-", dir=root) as place:
        arrived, gone = Path(place) / "arrived", Path(place) / "gone"
        for path, content in parcel.items():
            (arrived / path).parent.mkdir(parents=True, exist_ok=True)
            (arrived / path).write_bytes(content)
        for name in names:
            for source, target in ((root / name, gone / name), (arrived / name, root / name)):
                if source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(source, target)
