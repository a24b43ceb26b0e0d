"""Triggers, which end the delay. A trigger only has settings; the caller keeps its memory between steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from latebloom.components import Component
from latebloom.errors import ConfigError, require
from latebloom.fields import check_fields


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
            raise ConfigError(f"until: at_fraction {self.fraction:g} needs the total number of steps; give `steps`")
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
    """The length at which it is measured, in training lengths."""
    checks: int = 2
    """The number of checks in a row that must reach it."""
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
            assert moment.measure is not None, "DelayedAttention and RunConfig refuse when_beyond without a measure"
            accuracy = moment.measure(self.multiple)
            memory["in_a_row"] = memory.get("in_a_row", 0) + 1 if accuracy >= self.threshold else 0
            if memory["in_a_row"] >= self.checks:
                return (
                    f"state tracking at {self.multiple:g}x was at {accuracy:.3f}, "
                    f"for {self.checks} checks in a row at {self.threshold:g} or more"
                )
        return _latest(moment, self.latest, f"the threshold {self.threshold:g}")

    def latest_step(self, steps: int | None) -> int:
        return self.latest


@dataclass(frozen=True, kw_only=True)
class AtTokens(Trigger):
    """Switch after a number of tokens, or at the latest step."""

    configurable: ClassVar = False  # it needs `DelayedAttention.count_tokens`

    name: Literal["at_tokens"] = "at_tokens"
    tokens: int
    """Tokens without attention."""
    latest: int
    """Switch here even if fewer tokens were seen."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.tokens >= 1, "tokens", self.tokens, "1 or more")
        require(self.latest >= 1, "latest", self.latest, "1 or more")

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if moment.tokens == 0:
            raise ConfigError("until: at_tokens has no tokens; call delay.count_tokens(tokens) for every batch")
        if moment.tokens >= self.tokens:
            return f"{moment.tokens} tokens were seen"
        return _latest(moment, self.latest, f"{self.tokens} tokens")

    def latest_step(self, steps: int | None) -> int:
        return self.latest


@dataclass(frozen=True, kw_only=True)
class WhenPlateau(Trigger):
    """Switch when a reported metric has stopped falling, or at the latest step."""

    configurable: ClassVar = False  # it needs `DelayedAttention.report`

    name: Literal["when_plateau"] = "when_plateau"
    latest: int
    """Switch here even if the metric still falls."""
    patience: int = 5
    """The number of reports in a row without improvement."""
    improvement: float = 1e-3
    """The smallest improvement, as a share of the best value so far."""
    metric: str = "loss"
    """The name of the metric in a trainer's log."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.latest >= 1, "latest", self.latest, "1 or more")
        require(self.patience >= 1, "patience", self.patience, "1 or more")
        require(self.improvement >= 0, "improvement", self.improvement, "0 or more")

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        for value in moment.reports:
            best = memory.get("best")
            improved = best is None or value <= best - self.improvement * abs(best)
            memory["best"] = value if best is None else min(best, value)
            memory["without"] = 0 if improved else memory.get("without", 0) + 1
            if memory["without"] >= self.patience:
                return f"{self.metric} did not improve on {memory['best']:.4g} in {self.patience} reports"
        return _latest(moment, self.latest, "the plateau")

    def latest_step(self, steps: int | None) -> int:
        return self.latest


@dataclass(frozen=True, kw_only=True)
class WhenTrue(Trigger):
    """Switch when a user-defined condition is met, or at the latest step."""

    configurable: ClassVar = False  # a function cannot be written to a file

    name: Literal["when"] = "when"
    condition: Callable[[Moment], bool]
    """A function that is called after every step."""
    latest: int
    """Switch here even if the condition was not met."""

    def decide(self, moment: Moment, memory: dict[str, Any]) -> str | None:
        if self.condition(moment):
            return "the condition was met"
        return _latest(moment, self.latest, "the condition")

    def latest_step(self, steps: int | None) -> int:
        return self.latest


def _latest(moment: Moment, latest: int, awaited: str) -> str | None:
    return f"the latest step {latest} was reached before {awaited}" if moment.step >= latest else None


def at_step(step: int) -> AtStep:
    """Enable attention after this many steps."""
    return AtStep(step=step)


def at_fraction(fraction: float) -> AtFraction:
    """Enable attention after this share of all steps."""
    return AtFraction(fraction=fraction)


def when_beyond(threshold: float = 0.95, *, latest: int, **settings: Any) -> WhenBeyond:
    """Enable attention when state tracking beyond the training length is this accurate, or at the latest step."""
    return WhenBeyond(threshold=threshold, latest=latest, **settings)


def at_tokens(tokens: int, *, latest: int) -> AtTokens:
    """Enable attention after this many tokens, counted by `delay.count_tokens(tokens)`, or at the latest step."""
    return AtTokens(tokens=tokens, latest=latest)


def when_plateau(*, latest: int, **settings: Any) -> WhenPlateau:
    """Enable attention when the metric given to `delay.report(value)` stops falling, or at the latest step."""
    return WhenPlateau(latest=latest, **settings)


def when(condition: Callable[[Moment], bool], *, latest: int) -> WhenTrue:
    """Enable attention when a function of the `Moment` returns True, or at the latest step."""
    return WhenTrue(condition=condition, latest=latest)
