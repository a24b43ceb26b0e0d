"""Triggers, which end the delay. A trigger only has settings; the caller keeps its memory between steps.

The setting that says the most may be given by position: `at_step(6_000)`, `when_beyond(0.9, latest=9_000)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from latebloom.components import Component
from latebloom.errors import ConfigError
from latebloom.fields import Bound, Count, Positive, at_least

Accuracy = Annotated[float, Bound(lambda value: 0 < value <= 1, "above 0 and at most 1")]


@dataclass(frozen=True)
class Moment:
    """The state of training when a trigger is evaluated."""

    step: int
    """Optimizer steps done."""
    steps: int | None = None
    """The total number of optimizer steps, if known."""
    measure: Callable[[float], float] | None = None
    """Held-out state-tracking accuracy at a multiple of the training length."""
    tokens: int = 0
    """Tokens counted by `DelayedAttention.count_tokens`."""
    reports: tuple[float, ...] = ()
    """Values reported by `DelayedAttention.report` since the previous step."""


class Trigger(Component, ABC):
    """Decides when attention is enabled."""

    @abstractmethod
    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        """Return the reason to switch now, or None. `memory` belongs to the trigger and is saved with the run."""

    @abstractmethod
    def latest_step(self, steps: int | None) -> int:
        """Return the last step at which it can fire."""

    def first_step(self, steps: int | None) -> int:
        """Return the first step at which it may fire, measure or remember something; 1 if that is not known."""
        return 1


@dataclass(frozen=True, kw_only=True)
class AtStep(Trigger):
    """Switch after a number of steps."""

    name: Literal["at_step"] = "at_step"
    step: Count = field(kw_only=False)
    """Optimizer steps without attention."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        return f"step {self.step} was reached" if moment.step >= self.step else None

    def latest_step(self, steps: int | None) -> int:
        return self.step

    def first_step(self, steps: int | None) -> int:
        return self.step


@dataclass(frozen=True, kw_only=True)
class AtFraction(Trigger):
    """Switch after a share of all steps."""

    name: Literal["at_fraction"] = "at_fraction"
    fraction: Annotated[float, Bound(lambda value: 0 < value < 1, "between 0 and 1")] = field(kw_only=False)
    """The share of the steps without attention, between 0 and 1."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if moment.step < self.latest_step(moment.steps):
            return None
        return f"{self.fraction:g} of {moment.steps} steps were done"

    def latest_step(self, steps: int | None) -> int:
        if steps is None:
            raise ConfigError(f"until: at_fraction {self.fraction:g} needs the total number of steps; give `steps`")
        return max(1, round(self.fraction * steps))

    def first_step(self, steps: int | None) -> int:
        return self.latest_step(steps)


class Awaiting(Trigger):
    """Base of the triggers that wait for an event, and switch at the latest step if it has not happened."""

    latest: Count

    def latest_step(self, steps: int | None) -> int:
        return self.latest

    def at_latest(self, moment: Moment, awaited: str) -> str | None:
        """Return the reason to switch at the latest step."""
        return None if moment.step < self.latest else f"the latest step {self.latest} was reached before {awaited}"


@dataclass(frozen=True, kw_only=True)
class WhenBeyond(Awaiting):
    """Switch when state tracking holds beyond the training length, or at the latest step."""

    name: Literal["when_beyond"] = "when_beyond"
    latest: Count
    """Switch here even if the threshold was not reached."""
    threshold: Accuracy = field(default=0.95, kw_only=False)
    """The held-out accuracy of state tracking to reach."""
    multiple: Positive = 3.0
    """The length at which it is measured, in training lengths."""
    checks: Count = 2
    """The number of checks in a row that must reach it."""
    every: Count = 100
    """Steps between checks."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if moment.step % self.every == 0:
            assert moment.measure is not None, "DelayedAttention and RunConfig refuse when_beyond without a measure"
            accuracy = moment.measure(self.multiple)
            memory["in_a_row"] = memory.get("in_a_row", 0) + 1 if accuracy >= self.threshold else 0
            if memory["in_a_row"] >= self.checks:
                return (
                    f"state tracking at {self.multiple:g}x was at {accuracy:.3f}, "
                    f"for {self.checks} checks in a row at {self.threshold:g} or more"
                )
        return self.at_latest(moment, f"the threshold {self.threshold:g}")

    def first_step(self, steps: int | None) -> int:
        return min(self.every, self.latest)


@dataclass(frozen=True, kw_only=True)
class AtTokens(Awaiting):
    """Switch after a number of tokens, or at the latest step."""

    configurable: ClassVar = False  # it needs `DelayedAttention.count_tokens`

    name: Literal["at_tokens"] = "at_tokens"
    tokens: Count = field(kw_only=False)
    """Tokens without attention."""
    latest: Count
    """Switch here even if fewer tokens were seen."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if moment.tokens == 0:
            raise ConfigError("until: at_tokens has no tokens; call delay.count_tokens(tokens) for every batch")
        if moment.tokens >= self.tokens:
            return f"{moment.tokens} tokens were seen"
        return self.at_latest(moment, f"{self.tokens} tokens")


@dataclass(frozen=True, kw_only=True)
class WhenPlateau(Awaiting):
    """Switch when a reported metric has stopped falling, or at the latest step."""

    configurable: ClassVar = False  # it needs `DelayedAttention.report`

    name: Literal["when_plateau"] = "when_plateau"
    latest: Count
    """Switch here even if the metric still falls."""
    patience: Count = 5
    """The number of reports in a row without improvement."""
    improvement: Annotated[float, at_least(0)] = 1e-3
    """The smallest improvement, as a share of the best value so far."""
    metric: str = "loss"
    """The name of the metric in a trainer's log."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        for value in moment.reports:
            best = memory.get("best")
            improved = best is None or value <= best - self.improvement * abs(best)
            memory["best"] = value if best is None else min(best, value)
            memory["without"] = 0 if improved else memory.get("without", 0) + 1
            if memory["without"] >= self.patience:
                return f"{self.metric} did not improve on {memory['best']:.4g} in {self.patience} reports"
        return self.at_latest(moment, "the plateau")


@dataclass(frozen=True, kw_only=True)
class WhenTrue(Awaiting):
    """Switch when a user-defined condition is met, or at the latest step."""

    configurable: ClassVar = False  # a function cannot be written to a file

    name: Literal["when"] = "when"
    condition: Callable[[Moment], bool] = field(kw_only=False)
    """A function that is called after every step."""
    latest: Count
    """Switch here even if the condition was not met."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if self.condition(moment):
            return "the condition was met"
        return self.at_latest(moment, "the condition")


at_step, at_fraction, at_tokens = AtStep, AtFraction, AtTokens
when_beyond, when_plateau, when = WhenBeyond, WhenPlateau, WhenTrue
