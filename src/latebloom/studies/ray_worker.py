"""Workers of a Ray cluster: train a run, or a stack of runs, and report on it.

One that sees the study's folder trains in it. One that does not trains in a folder of its own, whose files are sent
back when it ends or is asked to stop.
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
from latebloom.engine.stacks import stack_folders
from latebloom.engine.surroundings import stop_requests
from latebloom.errors import InterruptedRun, LatebloomError
from latebloom.plugins import plugin_sources, receive_sources
from latebloom.studies.parcel import Parcel, pack, unpack
from latebloom.studies.stacks import Configs, train_wave

SECONDS_BETWEEN_WORDS = 0.2


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
    """The files, from a worker that does not see the study's folder."""
    stopped: bool = False


class Mailbox:
    """An actor with the progress of the workers for the driver, and the driver's request to stop for the workers."""

    def __init__(self) -> None:
        self._words: dict[str, Progress] = {}
        self._heard_of: set[str] = set()
        self._is_stopping = False

    def put(self, wave: str, words: dict[str, Progress]) -> bool:
        """Store the progress of a wave, by the name of its first run; return whether to stop."""
        self._heard_of.add(wave)
        self._words |= words
        return self._is_stopping

    def take(self) -> dict[str, Progress]:
        words, self._words = self._words, {}
        return words

    def stop(self) -> set[str]:
        """Ask the workers to stop; return the waves whose workers have reported."""
        self._is_stopping = True
        return self._heard_of


def folders(wave: Configs) -> list[str]:
    """Return the folders of the runs, and that of their stack, which has the checkpoints of all of them."""
    return [*wave, *stack_folders(wave)]


def runs_that_fit_there(order: Order) -> int:
    """Return how many such runs fit into the memory of a worker's GPU."""
    import torch

    (config,) = order.read().values()
    return runs_that_fit(config, torch.device("cuda"))


def train(order: Order, token: Path, kind: str, parcel: Parcel, mailbox: Any, words: list[str]) -> Done:
    """Train runs in a worker of the cluster."""
    import torch

    torch.set_num_threads(1)
    try:
        wave = order.read()
    except LatebloomError as error:
        return Done(dict.fromkeys(order.configs, str(error)))
    sys.argv = words  # a run records the user's command, not the one that Ray starts workers with
    # Signals are handled around the run too, so that a folder that is being packed is sent.
    with stop_requests(), _place(token, parcel, folders(wave)) as place:
        failures, stopped = {}, False
        try:
            with _telling(mailbox, next(iter(wave))) as tell:
                failures = train_wave(wave, place, torch.device(kind), tell)
        except InterruptedRun:
            stopped = True
        if place == token.parent:
            return Done(failures, stopped=stopped)
        told = {name: reason.replace(str(place), str(token.parent)) for name, reason in failures.items()}
        return Done(told, pack(place, folders(wave)), stopped)


@contextmanager
def _place(token: Path, parcel: Parcel, folders: list[str]) -> Iterator[Path]:
    """Yield the folder to train in: the study's if it is visible here, else a temporary one with the files so far."""
    if token.exists():
        yield token.parent
        return
    with TemporaryDirectory(prefix="latebloom-") as place:
        unpack(parcel, Path(place), folders)
        yield Path(place)


@contextmanager
def _telling(mailbox: Any, wave: str) -> Iterator[Callable[[str, Progress], None]]:
    """Yield an observer that reports to the mailbox, and ask it regularly whether to stop.

    A thread does it, because Ray gives away the core of a task while its main thread waits for an answer.
    """
    import ray

    told: SimpleQueue[tuple[str, Progress]] = SimpleQueue()
    is_over = Event()

    def speak() -> None:
        words = {}
        while not told.empty():
            name, seen = told.get()
            words[name] = seen
        if ray.get(mailbox.put.remote(wave, words)) and not is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def speak_now_and_then() -> None:
        while not is_over.is_set():
            speak()
            is_over.wait(SECONDS_BETWEEN_WORDS)
        speak()

    thread = Thread(target=speak_now_and_then, daemon=True)
    thread.start()
    try:
        yield lambda name, seen: told.put((name, seen))
    finally:
        is_over.set()
        thread.join()
