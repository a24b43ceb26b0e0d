"""What ends the delay. A trigger is settings; what it remembers between checks lives with the controller."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from latebloom.choice import Chosen
from latebloom.errors import ConfigError, require
from latebloom.fields import check_fields


@dataclass(frozen=True)
class Moment:
    """Where training stands when a trigger is asked."""

    step: int
    """Optimizer steps done."""
    steps: int | None = None
    """Optimizer steps in all, where that is known."""
    measure: Callable[[float], float] | None = None
    """Held-out state-tracking accuracy at a multiple of the training length."""


class Trigger(Chosen, ABC):
    """Decides when attention is let in."""

    @abstractmethod
    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        """The reason to switch now, or None. `memory` is the trigger's own, saved with the run."""

    @abstractmethod
    def latest_step(self, steps: int | None) -> int:
        """The last step at which it fires, whatever is seen."""


@dataclass(frozen=True, kw_only=True)
class AtStep(Trigger):
    """Switch after a number of steps."""

    name: Literal["at_step"] = "at_step"
    step: int
    """Optimizer steps without attention."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.step >= 1, "step", self.step, "1 or more")

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        return f"step {self.step} was reached" if moment.step >= self.step else None

    def latest_step(self, steps: int | None) -> int:
        return self.step


@dataclass(frozen=True, kw_only=True)
class AtFraction(Trigger):
    """Switch after a share of all steps."""

    name: Literal["at_fraction"] = "at_fraction"
    fraction: float
    """The share of the steps without attention, between 0 and 1."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.fraction < 1, "fraction", self.fraction, "between 0 and 1")

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if moment.step < self.latest_step(moment.steps):
            return None
        return f"{self.fraction:g} of {moment.steps} steps were done"

    def latest_step(self, steps: int | None) -> int:
        if steps is None:
            raise ConfigError(f"until: at_fraction {self.fraction:g} takes the number of steps in all; give `steps`")
        return max(1, round(self.fraction * steps))


@dataclass(frozen=True, kw_only=True)
class WhenBeyond(Trigger):
    """Switch when state tracking holds beyond the training length, or at the latest step."""

    name: Literal["when_beyond"] = "when_beyond"
    latest: int
    """Switch here even if the threshold was not reached."""
    threshold: float = 0.95
    """The held-out accuracy of state tracking to reach."""
    multiple: float = 3.0
    """Where it is measured, in training lengths."""
    checks: int = 2
    """How many checks in a row must reach it."""
    every: int = 100
    """Steps between checks."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.latest >= 1, "latest", self.latest, "1 or more")
        require(0 < self.threshold <= 1, "threshold", self.threshold, "above 0 and at most 1")
        require(self.multiple > 0, "multiple", self.multiple, "above 0")
        require(self.checks >= 1, "checks", self.checks, "1 or more")
        require(self.every >= 1, "every", self.every, "1 or more")

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if moment.step % self.every == 0:
            assert moment.measure is not None, "the controller refuses when_beyond without a measure"
            seen = moment.measure(self.multiple)
            memory["in_a_row"] = memory.get("in_a_row", 0) + 1 if seen >= self.threshold else 0
            if memory["in_a_row"] >= self.checks:
                return (
                    f"state tracking at {self.multiple:g}x was at {seen:.3f}, "
                    f"for {self.checks} checks in a row at {self.threshold:g} or more"
                )
        if moment.step >= self.latest:
            return f"the latest step {self.latest} was reached before the threshold {self.threshold:g}"
        return None

    def latest_step(self, steps: int | None) -> int:
        return self.latest


def at_step(step: int) -> AtStep:
    """Let attention in after this many steps."""
    return AtStep(step=step)


def at_fraction(fraction: float) -> AtFraction:
    """Let attention in after this share of all steps."""
    return AtFraction(fraction=fraction)


def when_beyond(threshold: float = 0.95, *, latest: int, **settings: Any) -> WhenBeyond:
    """Let attention in when state tracking beyond the training length is this good, or at the latest step."""
    return WhenBeyond(threshold=threshold, latest=latest, **settings)
