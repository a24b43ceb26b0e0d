"""What a worker of a Ray cluster does: train a run, or a stack of runs, and tell of it.

One that sees the study's folder trains in it. One that does not trains in a folder of its own, whose files are sent
back when it ends or is asked to stop.
"""

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
from typing import Any

from latebloom.engine.outcome import Progress
from latebloom.engine.stacked_run import stack_folders
from latebloom.engine.surroundings import stop_requests
from latebloom.errors import InterruptedRun
from latebloom.studies.parcel import Parcel, pack, unpack
from latebloom.studies.stacks import Configs, train_wave

SECONDS_BETWEEN_WORDS = 0.2


@dataclass(frozen=True)
class Done:
    """What a worker returns."""

    failures: dict[str, str] = field(default_factory=dict)
    parcel: Parcel | None = None
    """The files, from a worker that does not see the study's folder."""
    stopped: bool = False


class Mailbox:
    """Where workers leave word for the driver, and learn whether to stop; an actor."""

    def __init__(self) -> None:
        self._words: dict[str, Progress] = {}
        self._heard_of: set[str] = set()
        self._is_stopping = False

    def put(self, wave: str, words: dict[str, Progress]) -> bool:
        """Leave word of a wave, by the name of its first run; whether to stop."""
        self._heard_of.add(wave)
        self._words |= words
        return self._is_stopping

    def take(self) -> dict[str, Progress]:
        words, self._words = self._words, {}
        return words

    def stop(self) -> set[str]:
        """Tell workers to stop when they ask; the waves whose workers do ask."""
        self._is_stopping = True
        return self._heard_of


def folders(wave: Configs) -> list[str]:
    """The runs' folders, and then that of their stack, whose checkpoints say what was reached in each of them."""
    return [*wave, *stack_folders(wave)]


def train(wave: Configs, token: Path, kind: str, parcel: Parcel, mailbox: Any, words: list[str]) -> Done:
    """What a worker does."""
    import torch

    torch.set_num_threads(1)
    sys.argv = words  # the command that a run notes down is the user's, not the one that Ray starts workers with
    # Signals are heeded around the run too: a folder that is being packed is sent.
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
    """Where to train: the study's folder if it is seen here, else a temporary one with what was reached before."""
    if token.exists():
        yield token.parent
        return
    with TemporaryDirectory(prefix="latebloom-") as place:
        unpack(parcel, Path(place), folders)
        yield Path(place)


@contextmanager
def _telling(mailbox: Any, wave: str) -> Iterator[Callable[[str, Progress], None]]:
    """An observer that leaves word, and a look now and then whether to stop.

    A thread does it, because Ray gives the core of a task away while its main thread waits for an answer.
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
