"""What a tracker is, how one is chosen by name, and the observer that feeds it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from latebloom.config import RunConfig
from latebloom.engine.loop import Progress
from latebloom.errors import ConfigError, unknown
from latebloom.evaluation.result import Evaluation

PROJECT = "latebloom"
TRACKERS = {
    "tensorboard": "event files in the run's folder; look at them with `tensorboard --logdir runs`",
    "wandb": "Weights & Biases, offline in the run's folder unless WANDB_MODE says otherwise; `wandb sync` uploads",
    "trackio": "trackio's database on this machine; look at it with `trackio show`",
}


class Tracker(ABC):
    """Takes the numbers of one run."""

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers by name, such as train/loss or check/75/accuracy."""

    @abstractmethod
    def close(self) -> None:
        """Write what is not written yet."""


def tracker(name: str, folder: Path, config: RunConfig, first_step: int = 0) -> Tracker:
    """A tracker by its name, for the run in a folder. What it knows from `first_step` on, it will be told again."""
    check_tracker(name)
    module = import_module(f"latebloom.trackers.{name}")
    return module.make(folder, config, first_step)


def check_tracker(name: str) -> None:
    """Raise unless there is such a tracker and its package is installed."""
    if name not in TRACKERS:
        raise unknown("track", name, TRACKERS)
    if find_spec(name) is None:
        raise ConfigError(
            f"track: {name} takes the package {name}, which is not installed; pip install 'latebloom[{name}]'"
        )


class Tracked:
    """An observer of one run that hands on what it measures. Use as a context manager."""

    def __init__(self, name: str, folder: Path, config: RunConfig) -> None:
        check_tracker(name)
        self._chosen: tuple[str, Path, RunConfig] = (name, folder, config)
        self._tracker: Tracker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._tracker is not None:
            self._tracker.close()

    def __call__(self, seen: Progress) -> None:
        if self._tracker is None:  # only now is it known that there is something to train, and from which step on
            self._tracker = tracker(*self._chosen, first_step=seen.step)
        numbers = {**seen.numbers, **({} if seen.evaluation is None else evaluation_numbers(seen.evaluation))}
        if numbers:
            self._tracker.log(seen.step, numbers)


def evaluation_numbers(evaluation: Evaluation) -> dict[str, float]:
    """The final evaluation as numbers by name."""
    numbers = {"test/reach": evaluation.reach}
    for count in evaluation.counts:
        numbers[f"test/{count.length}/accuracy"] = count.accuracy
        numbers |= {f"test/{count.length}/{name}": count.accuracy_of(name) for name in count.answers}
    return numbers
