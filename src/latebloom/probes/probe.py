"""The family of probes: each asks one question of a trained model, and answers with a small table and one chart.

A probe is one file with one class below `Probe`: a dataclass with its settings, the columns of its table, its chart,
and `measure`. It registers itself by being defined. The probes of this package are below `StackedProbe`
(`horizon.py` is the shortest), and measure many models of one shape at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from latebloom.components import Component
from latebloom.errors import ConfigError
from latebloom.probes.stack import Stack
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


@dataclass(frozen=True, kw_only=True)
class StackedProbe(Probe, ABC):
    """The settings of a probe that measures several models of one shape at once; one model is a stack of one."""

    def measure(self, subject: Subject, progress: Progress = lambda share: None) -> Table:
        (table,) = self.measure_stack(Stack([subject]), progress)
        return table

    @abstractmethod
    def measure_stack(self, stack: Stack, progress: Progress = lambda share: None) -> list[Table]:
        """Return the table of each model; raise `NotMeasurable` if the question makes no sense for such models.

        The models are left as they were.
        """
