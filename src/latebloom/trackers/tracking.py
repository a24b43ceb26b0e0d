"""The family of trackers, and the observer that sends metrics to one.

A tracker is one file: a subclass of `Tracker` with its settings, whose `build` opens a session.
"""

from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from latebloom.components import Component
from latebloom.config import RunConfig
from latebloom.engine.loop import Progress
from latebloom.errors import ConfigError
from latebloom.evaluation.result import Evaluation

PROJECT = "latebloom"


class TrackerSession(Protocol):
    """Receives the metrics of one run; a run of W&B is one."""

    def log(self, numbers: dict[str, float], /, *, step: int) -> Any:
        """Record numbers by name, such as train/loss or check/75/accuracy."""

    def finish(self) -> Any:
        """Write pending metrics and end the session."""


class Tracker(Component, ABC):
    """The settings of a tracker."""

    package: ClassVar[str | None] = None
    """The required package, which is also the name of the extra."""

    @abstractmethod
    def build(self, folder: Path, config: RunConfig, first_step: int) -> TrackerSession:
        """Open a session for the run in a folder; it logs the steps after `first_step`, some perhaps again."""

    def check(self) -> None:
        """Raise a ConfigError if the required package is not installed."""
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
            self._session.finish()

    def __call__(self, progress: Progress) -> None:
        if self._session is None:  # the first report has the step at which training begins
            self._session = self._tracker.build(self._folder, self._config, progress.step)
        numbers = dict(progress.numbers)
        if progress.evaluation is not None:
            numbers |= _evaluation_numbers(progress.evaluation)
        if numbers:
            self._session.log(numbers, step=progress.step)


def _evaluation_numbers(evaluation: Evaluation) -> dict[str, float]:
    numbers = {"test/reach": evaluation.reach}
    for count in evaluation.counts:
        numbers[f"test/{count.length}/accuracy"] = count.accuracy
        numbers |= {f"test/{count.length}/{name}": count.accuracy_of(name) for name in count.answers}
    return numbers
