"""A worker of a Ray cluster: it trains a run or a stack of runs, and reports the progress.

A worker that can access the folder of the study trains in it. Another one trains in a temporary folder, and its files
are sent back when it ends or stops.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Self

from latebloom.config import config_from
from latebloom.engine.memory import runs_that_fit
from latebloom.engine.outcome import Progress
from latebloom.engine.process_state import stop_requests
from latebloom.engine.stacks import stack_folders
from latebloom.errors import InterruptedRun, LatebloomError
from latebloom.plugins import plugin_sources, receive_sources
from latebloom.studies.parcel import Parcel, pack, unpack
from latebloom.studies.stacks import Configs, train_wave

SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True)
class Order:
    """Runs to train, in a form that a machine can read without the plugins that they use."""

    configs: dict[str, str]
    """JSON of each run."""
    sources: dict[str, bytes]
    """The Python files of plugins by path, for machines that share no file system."""

    @classmethod
    def of(cls, wave: Configs) -> Self:
        sources: dict[str, bytes] = {}
        for config in wave.values():
            sources |= plugin_sources(config.to_json().get("imports", []))
        return cls({name: json.dumps(config.to_json()) for name, config in wave.items()}, sources)

    def read(self) -> Configs:
        receive_sources(self.sources)
        return {name: config_from(json.loads(text)) for name, text in self.configs.items()}


@dataclass(frozen=True)
class Done:
    """The result of a worker."""

    failures: dict[str, str] = field(default_factory=dict)
    parcel: Parcel | None = None
    """The files, from a worker that cannot access the folder of the study."""
    stopped: bool = False


class Coordinator:
    """A Ray actor that passes progress from the workers to the driver, and the request to stop to the workers."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}
        self._in_training: set[str] = set()
        self._is_stopping = False

    def report(self, wave: str, progress: dict[str, Progress]) -> bool:
        """Record the progress of a wave, named after its first run; return whether it should stop."""
        self._in_training.add(wave)
        self._progress |= progress
        return self._is_stopping

    def take_progress(self) -> dict[str, Progress]:
        """Return the progress since the last call."""
        progress, self._progress = self._progress, {}
        return progress

    def request_stop(self) -> set[str]:
        """Make workers stop at their next report; return the waves that have reported."""
        self._is_stopping = True
        return self._in_training


def folders(wave: Configs) -> list[str]:
    """Return the folders of the runs, followed by that of their stack with the checkpoints."""
    return [*wave, *stack_folders(wave)]


def runs_that_fit_there(order: Order) -> int:
    """Return how many such runs fit into the memory of a worker's GPU."""
    import torch

    (config,) = order.read().values()
    return runs_that_fit(config, torch.device("cuda"))


def train(order: Order, token: Path, kind: str, parcel: Parcel, coordinator: Any, command: list[str]) -> Done:
    """Train runs in a worker of the cluster."""
    import torch

    torch.set_num_threads(1)
    try:
        wave = order.read()
    except LatebloomError as error:
        return Done(dict.fromkeys(order.configs, str(error)))
    sys.argv = command  # a run records the command of the user, not that of the Ray worker
    # Signals are handled outside the run too, so that a folder is packed and sent completely.
    with stop_requests(), _place(token, parcel, folders(wave)) as place:
        failures, stopped = {}, False
        try:
            with _reporting(coordinator, next(iter(wave))) as observe:
                failures = train_wave(wave, place, torch.device(kind), observe)
        except InterruptedRun:
            stopped = True
        if place == token.parent:
            return Done(failures, stopped=stopped)
        reasons = {name: reason.replace(str(place), str(token.parent)) for name, reason in failures.items()}
        return Done(reasons, pack(place, folders(wave)), stopped)


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
def _reporting(coordinator: Any, wave: str) -> Iterator[Callable[[str, Progress], None]]:
    """Yield an observer that reports to the coordinator, which can also stop the run.

    A thread sends the reports, because Ray gives the core of a task away while its main thread waits for an answer.
    """
    import ray

    queue: SimpleQueue[tuple[str, Progress]] = SimpleQueue()
    has_ended = Event()

    def send() -> None:
        progress = {}
        while not queue.empty():
            name, latest = queue.get()
            progress[name] = latest
        if ray.get(coordinator.report.remote(wave, progress)) and not has_ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def send_regularly() -> None:
        while not has_ended.is_set():
            send()
            has_ended.wait(SECONDS_BETWEEN_REPORTS)
        send()

    thread = Thread(target=send_regularly, daemon=True)
    thread.start()
    try:
        yield lambda name, progress: queue.put((name, progress))
    finally:
        has_ended.set()
        thread.join()
