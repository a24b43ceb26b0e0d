"""Runs in worker processes of this machine or of a cluster: a queue, new starts of workers that died, and a stop."""

import json
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from latebloom.config import config_from
from latebloom.engine.outcome import Progress
from latebloom.engine.pause import Stop
from latebloom.engine.process_state import stop_requests
from latebloom.errors import InterruptedRun, LatebloomError
from latebloom.plugins import plugin_sources, receive_sources
from latebloom.studies.stacks import Configs, Observe, train_wave

ATTEMPTS = 3
"""How often a run is started if its process dies."""


@dataclass(frozen=True)
class Order:
    """Runs to train, in a form that a process can read without the plugins that they use."""

    configs: dict[str, str]
    """JSON of each run."""
    sources: dict[str, bytes]
    """The Python files of plugins by path, for machines that share no file system."""
    stop: Stop | None = None
    """Where the runs pause."""

    @classmethod
    def of(cls, wave: Configs, stop: Stop | None = None) -> Self:
        data = {name: config.to_json() for name, config in wave.items()}
        imports = [name for config in data.values() for name in config.get("imports", [])]
        return cls({name: json.dumps(config) for name, config in data.items()}, plugin_sources(imports), stop)

    def read(self) -> Configs:
        receive_sources(self.sources)
        return {name: config_from(json.loads(text)) for name, text in self.configs.items()}


def train_order(order: Order, folder: Path, device: torch.device, observe: Observe) -> dict[str, str]:
    """Train runs in a worker; return the reason for each run that failed."""
    try:
        wave = order.read()
    except LatebloomError as error:
        return dict.fromkeys(order.configs, str(error))
    return train_wave(wave, folder, device, observe, order.stop)


@dataclass(frozen=True)
class Ended:
    """The end of a worker."""

    wave: Configs
    failures: dict[str, str] = field(default_factory=dict)
    """The reason for each run that failed."""
    died: str | None = None
    """How it ended, if it was before its runs did."""


class Workers(ABC):
    """Processes that each train a wave of runs: one run, or several of one shape."""

    @abstractmethod
    def start(self, wave: Configs) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Make all workers save and stop."""

    @abstractmethod
    def take_ended(self) -> Iterator[Ended]:
        """Wait a moment, pass progress on, and yield the workers that have ended."""


def train_waves(waves: list[Configs], folder: Path, workers: Workers, at_once: int, observe: Observe) -> dict[str, str]:
    """Train waves of runs, at most `at_once` at a time; return the reason for each run that failed."""
    waiting, running, is_stopping = deque(waves), 0, False
    deaths: Counter[str] = Counter()
    failures: dict[str, str] = {}
    # The terminal sends Ctrl-C to the workers too; the driver waits for them.
    with stop_requests(second_stops_at_once=False) as stop_requested:
        while running or (waiting and not stop_requested()):
            while waiting and running < at_once and not stop_requested():
                workers.start(waiting.popleft())
                running += 1
            if stop_requested() and not is_stopping:
                is_stopping = True
                workers.stop()
            for ended in workers.take_ended() if running else ():
                running -= 1
                failed = ended.failures
                if ended.died is not None and not stop_requested():
                    first = next(iter(ended.wave))
                    deaths[first] += 1
                    if deaths[first] < ATTEMPTS:  # killed, perhaps for memory: it continues from its checkpoint
                        waiting.append(ended.wave)
                    else:
                        failed = dict.fromkeys(ended.wave, f"its process ended {ATTEMPTS} times{ended.died}")
                failures |= failed
                for name in failed:
                    observe(name, Progress.of_failed(ended.wave[name].training.steps))
    if stop_requested():
        raise InterruptedRun(f"stopped; the progress is saved in {folder}")
    return failures
