"""The family of trackers, and the observer that feeds one.

A tracker is one file with two classes: the settings, a dataclass below `Tracker` whose `build` opens a session, and the
session, which takes the metrics of one run.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from latebloom.components import Component
from latebloom.config import RunConfig
from latebloom.engine.loop import Progress
from latebloom.errors import ConfigError
from latebloom.evaluation.result import Evaluation

PROJECT = "latebloom"


class TrackerSession(ABC):
    """Takes the metrics of one run."""

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers by name, such as train/loss or check/75/accuracy."""

    @abstractmethod
    def close(self) -> None:
        """Write what is not written yet."""


class Tracker(Component, ABC):
    """Settings of a tracker."""

    package: ClassVar[str | None] = None
    """The package that it needs, which is also the name of the extra."""

    @abstractmethod
    def build(self, folder: Path, config: RunConfig, first_step: int) -> TrackerSession:
        """Open a session for the run in a folder, which will log the steps after `first_step` (again)."""

    def check(self) -> None:
        """Raise a ConfigError if the package that it needs is not installed."""
        if self.package is not None and find_spec(self.package) is None:
            raise ConfigError(
                f"track: {self.name} needs the package {self.package}, which is not installed; "
                f"pip install 'latebloom[{self.package}]'"
            )


class Tracked:
    """An observer of one run that passes its metrics on to a tracker. Use as a context manager."""

    def __init__(self, name: str, folder: Path, config: RunConfig) -> None:
        self._tracker = Tracker.named(name, "track")
        self._tracker.check()
        self._folder, self._config = folder, config
        self._session: TrackerSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._session is not None:
            self._session.close()

    def __call__(self, seen: Progress) -> None:
        if self._session is None:  # only now is it known that there is something to train, and from which step on
            self._session = self._tracker.build(self._folder, self._config, seen.step)
        numbers = {**seen.numbers, **({} if seen.evaluation is None else evaluation_numbers(seen.evaluation))}
        if numbers:
            self._session.log(seen.step, numbers)


def evaluation_numbers(evaluation: Evaluation) -> dict[str, float]:
    """Return the final evaluation as numbers by name."""
    numbers = {"test/reach": evaluation.reach}
    for count in evaluation.counts:
        numbers[f"test/{count.length}/accuracy"] = count.accuracy
        numbers |= {f"test/{count.length}/{name}": count.accuracy_of(name) for name in count.answers}
    return numbers
