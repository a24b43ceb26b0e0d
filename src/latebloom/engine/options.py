"""Training options that are alternatives to a delay; each can be used alone or with a delay.

docs/training-options.md describes them all; those with settings of their own are here.
"""

from dataclasses import dataclass
from typing import Annotated

from latebloom.errors import require
from latebloom.fields import Bound, Positive, at_least, check_fields

Share = Annotated[float, Bound(lambda share: 0 <= share <= 1, "from 0 to 1")]


@dataclass(frozen=True, kw_only=True)
class SlowAttention:
    """A lower learning rate of attention than of the rest of the model, from its first step on."""

    factor: Positive = 1.0
    """A factor on the learning rate of attention in all steps."""
    warmup: Annotated[int, at_least(0)] = 0
    """Steps in which this factor rises from 0, counted from the first step in which attention is trained."""

    def __post_init__(self) -> None:
        check_fields(self)
        changes = self.factor != 1 or self.warmup > 0
        require(changes, "factor", self.factor, "other than 1 without a warmup, or it has no effect")

    def at(self, trained: int) -> float:
        """Return the factor after `trained` steps of attention."""
        return self.factor * (1.0 if trained >= self.warmup else (trained + 1) / self.warmup)


@dataclass(frozen=True, kw_only=True)
class DropPath:
    """Attention is left out of a block for some sequences of a batch, drawn for each sequence and block."""

    probability: Share = 0.5
    """The probability that a sequence skips the attention of a block, at the first step."""
    falling: Share = 0.0
    """The share of the training steps in which the probability falls linearly to 0; 0 keeps it constant."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.probability > 0, "probability", self.probability, "above 0, or it has no effect")

    def at(self, step: int, steps: int) -> float:
        """Return the probability at step 0, 1, ... of a run of so many steps."""
        return self.probability if self.falling == 0 else self.probability * max(0.0, 1 - step / (self.falling * steps))


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Lengths that grow: the longest length of a batch rises to the training length."""

    start: Annotated[int, at_least(2)] = 5
    """The longest length at the first step."""
    rising: Annotated[float, Bound(lambda share: 0 < share <= 1, "above 0 and at most 1")] = 0.5
    """The share of the training steps in which it rises linearly to the training length."""

    def __post_init__(self) -> None:
        check_fields(self)

    def at(self, step: int, steps: int, length: int) -> int:
        """Return the longest length at step 0, 1, ... of a run of so many steps."""
        return min(length, self.start + int((length - self.start + 1) * step / (self.rising * steps)))
