"""The parts of a plan: arms, the ranges of their choices, and rounds of tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from latebloom.config import RunConfig, with_overrides
from latebloom.errors import ConfigError, require
from latebloom.results.stated import BestOf


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A number in the choices of an arm, such as the learning rate, with values beyond the range that they cover.

    If the best choice of an arm has the smallest or the largest value, the next one is tried for every arm of its
    group: see `extend_ranges`.
    """

    fields: tuple[str, ...]
    """The settings that have the value, such as training.full.learning_rate."""
    below: tuple[float, ...] = ()
    """Values below the range of the choices, from the nearest on."""
    above: tuple[float, ...] = ()
    """Values above the range of the choices, from the nearest on."""

    def value(self, config: RunConfig) -> float:
        """Return the value of a choice."""
        return reduce(getattr, self.fields[-1].split("."), config)

    def put(self, config: RunConfig, value: float) -> RunConfig:
        """Return a choice with another value."""
        return with_overrides(config, [f"{field}={value!r}" for field in self.fields])

    def check(self, arm: str, choices: Sequence[RunConfig]) -> None:
        """Raise unless the choices have the settings, and the values continue their range."""
        field = f"arm {arm}: axis"
        if not self.fields or not choices:
            raise ConfigError(f"{field}: it needs fields, and choices whose range it extends")
        for name in self.fields:
            found = (reduce(lambda part, key: getattr(part, key, None), name.split("."), one) for one in choices)
            if any(type(value) not in (int, float) for value in found):
                raise ConfigError(f"{field}: {name} is not a number in every choice")
        values = [self.value(one) for one in choices]
        for side, found, row in (
            ("below", self.below, [*reversed(self.below), min(values)]),
            ("above", self.above, [max(values), *self.above]),
        ):
            is_sorted = all(low < high for low, high in pairwise(row))
            wanted = f"values {side} {min(values) if side == 'below' else max(values):g}, from the nearest on"
            require(is_sorted, f"{field}: {side}", found, wanted)


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison: a configuration, trained with every seed of the study."""

    name: str
    """Its name in the report, such as joint or dat."""
    config: RunConfig
    """The run; the study sets its seed. Choices are described by their differences from it."""
    choices: tuple[RunConfig, ...] = ()
    """Configurations of which the best on tuning seeds is trained instead, such as a grid of learning rates."""
    group: str = ""
    """Arms of one group are compared with each other; by default the name of the task."""
    seeds: Sequence[int] = ()
    """Its own seeds; by default those of the study."""
    against: str | tuple[str, ...] = ()
    """The arms of its group that it is compared with, such as one that differs in a single setting. If any arm has this
    field, only these pairs are compared; fewer comparisons have more power. Otherwise all arms of a group are compared
    with each other."""
    folder: str | None = None
    """The folder of its runs in that of the study; by default TASK/ARM."""
    control: bool = False
    """Whether it is a negative control, in which no effect is expected; the report marks it."""
    cost: float = 1.0
    """The time of a step in steps of an ordinary arm, for the cost of the study; 2 for a second forward pass."""
    axis: Axis | None = None
    """The range of its choices that is extended if the best one is at its end."""
    best_of: BestOf | None = None
    """A selection among its seeds, which the report shows as an arm of its own."""

    @property
    def task(self) -> str:
        return self.group or self.config.task.name

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the arms that it is compared with."""
        return (self.against,) if isinstance(self.against, str) else tuple(self.against)


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of tuning: every choice that is left is trained up to a share of its steps, and the best go on.

    A run goes on from where it was, with the schedules of the whole run. Choices are ranked within their arm, by their
    mean over all held-out seeds so far: see `rank_choices`. A round that ends before the last step, while no choice of
    an arm is clearly above chance, drops none of them.
    """

    seeds: Sequence[int] = ()
    """Held-out seeds that are added to those of the rounds before."""
    share: float = 1.0
    """The share of its steps up to which a run is trained; 1 in the last round."""
    keep: int | None = None
    """How many choices of each arm go on to the next round; by default the better half."""

    def kept(self, choices: int) -> int:
        """Return how many of some choices go on."""
        return min(choices, -(-choices // 2) if self.keep is None else self.keep)

    def stop_step(self, config: RunConfig) -> int:
        """Return the step up to which a run is trained."""
        return max(1, round(self.share * config.training.steps))
