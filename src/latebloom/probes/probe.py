"""The family of probes: each asks one question of a trained model, and answers with a small table and one chart.

A probe is one file with one class below `Probe` (`horizon.py` is the shortest): a dataclass with its settings, the
columns of its table, its chart, and `measure`. It registers itself by being defined.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from latebloom.components import Component
from latebloom.errors import ConfigError
from latebloom.probes.subject import Subject
from latebloom.probes.table import Chart, Column, Table

Progress = Callable[[float], None]
"""Is called with the share of the work that is done."""


class NotMeasurable(ConfigError):  # noqa: N818 (not a mistake)
    """A probe that makes no sense for a model or a task; the message is one sentence that says why."""


@dataclass(frozen=True, kw_only=True)
class Probe(Component, ABC):
    """The settings of a probe."""

    columns: ClassVar[tuple[Column, ...]]
    """The columns of its table."""
    chart: ClassVar[Chart]
    """The chart of its table."""
    more: ClassVar[tuple[Chart, ...]] = ()
    """Further charts, which a page folds away."""

    @abstractmethod
    def measure(self, subject: Subject, progress: Progress = lambda share: None) -> Table:
        """Return the table of one model; raise `NotMeasurable` if the question makes no sense for it.

        The model is left as it was.
        """
