"""The result of an evaluation: accuracy by length, reach and cliff."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import prod
from statistics import mean
from typing import Any

from latebloom.errors import CheckpointError
from latebloom.evaluation.accuracy import Count
from latebloom.fields import LARGEST_COUNT

CLAIM = 3
"""The multiple of the training length at which the paper claims 90%."""
HOLDS_AT = 0.9
"""The accuracy that counts as holding, for reach and cliff."""


def held_length(counts: Sequence[Count]) -> int:
    """Return the longest tested length up to which every tested length holds; 0 if the shortest does not."""
    by_length = sorted(counts, key=lambda count: count.length)
    return max((count.length for count in takewhile(lambda count: count.accuracy >= HOLDS_AT, by_length)), default=0)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy by length of one trained model."""

    training_length: int
    """The largest length in training."""
    counts: tuple[Count, ...]
    """The right answers at each tested length, from the shortest to the longest."""
    chance: dict[str, float]
    """The accuracy of guessing, for each named answer."""
    chance_all: float
    """The accuracy of guessing every query of a sequence, at the shortest tested length."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """For a language model: the loss on the same tokens by length of context, in nats."""

    @classmethod
    def of(cls, training_length: int, counts: tuple[Count, ...], chance: dict[str, float]) -> "Evaluation":
        """Return the evaluation with these counts, from the shortest length to the longest."""
        queries = counts[0].queries
        return cls(training_length, counts, chance, prod(p ** queries.get(name, 1) for name, p in chance.items()))

    @property
    def lengths(self) -> list[int]:
        return [count.length for count in self.counts]

    @property
    def reach(self) -> float:
        """The longest length up to which every tested length holds, in training lengths."""
        return held_length(self.counts) / self.training_length

    @property
    def score(self) -> float:
        """What tuning ranks settings by: `mean_beyond`, or for a language model the negative loss at 1x."""
        return -self.losses[self.training_length] if self.losses else self.mean_beyond

    @property
    def mean_beyond(self) -> float:
        """Mean accuracy over the tested lengths beyond the training length, or over all if there is none."""
        return mean(self.accuracy(length) for length in self.lengths_beyond)

    def mean_beyond_of(self, answers: Sequence[str]) -> float:
        """Return the mean, over lengths beyond the training length, of the accuracy of the worst of these answers."""
        return mean(min(self.accuracy(length, name) for name in answers) for length in self.lengths_beyond)

    @property
    def lengths_beyond(self) -> list[int]:
        """The tested lengths beyond the training length, or all if there is none."""
        return [length for length in self.lengths if length > self.training_length] or self.lengths

    @property
    def cliff(self) -> int | None:
        """The first length up to twice the training length with less than half the accuracy at the training length.

        None if there is no such length, or if the model does not hold at the training length.
        """
        start, at = self.training_length, {count.length: count.accuracy for count in self.counts}
        if at.get(start, 0.0) < HOLDS_AT:
            return None
        return next((n for n in sorted(at) if start < n <= 2 * start and at[n] < at[start] / 2), None)

    @property
    def cliff_tested(self) -> bool:
        """Whether a cliff can be found: the training length and a length up to twice it were tested."""
        start = self.training_length
        return start in self.lengths and any(start < length <= 2 * start for length in self.lengths)

    def accuracy(self, length: int, answer: str | None = None) -> float:
        """Return the accuracy at a tested length, of one named answer or of all together."""
        count = next((count for count in self.counts if count.length == length), None)
        if count is None:
            raise KeyError(f"length {length} was not tested; tested: {', '.join(map(str, self.lengths))}")
        return count.accuracy if answer is None else count.accuracy_of(answer)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {
            "training_length": self.training_length,
            "reach": self.reach,
            "cliff": self.cliff,
            "cliff_tested": self.cliff_tested,
            "chance": self.chance_all,
            "chance_of": dict(self.chance),
            "lengths": [
                {
                    "length": count.length,
                    "sequences": count.sequences,
                    **({"loss": self.losses[count.length]} if count.length in self.losses else {}),
                    **_share(count.correct, count.accuracy, count.interval),
                    "answers": {
                        name: _share(right, count.accuracy_of(name), count.interval_of(name))
                        | ({"queries": count.queries[name]} if name in count.queries else {})
                        for name, right in count.answers.items()
                    },
                }
                for count in self.counts
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Evaluation":
        try:
            counts = tuple(
                Count(
                    row["length"], row["sequences"], row["correct"],
                    {name: answer["correct"] for name, answer in row["answers"].items()},
                    {name: answer["queries"] for name, answer in row["answers"].items() if "queries" in answer},
                )
                for row in data["lengths"]
            )  # fmt: skip
            losses = {row["length"]: float(row["loss"]) for row in data["lengths"] if "loss" in row}
            found = cls(data["training_length"], counts, data["chance_of"], data["chance"], losses)
            found._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"this is not an evaluation: {error!r} while reading it") from None
        return found

    def _check(self) -> None:
        """Raise ValueError unless counts and shares are possible; TypeError if they are no numbers."""
        totals = [(count.correct, count.sequences) for count in self.counts]
        totals += [
            (right, count.sequences * count.queries.get(name, 1))
            for count in self.counts
            for name, right in count.answers.items()
        ]
        whole = [self.training_length, *(one for count in self.counts for one in (count.length, count.sequences))]
        whole += [queries for count in self.counts for queries in count.queries.values()]
        is_possible = all(isinstance(number, int) and 1 <= number <= LARGEST_COUNT for number in whole)
        is_possible &= all(isinstance(right, int) and 0 <= right <= total for right, total in totals)
        is_possible &= all(0 <= share <= 1 for share in (self.chance_all, *self.chance.values()))
        is_possible &= all(self.chance.keys() <= count.answers.keys() for count in self.counts)
        if not is_possible or not self.counts:
            raise ValueError("a number is not possible there")


def _share(correct: int, accuracy: float, interval: tuple[float, float]) -> dict[str, Any]:
    return {"correct": correct, "accuracy": accuracy, "interval": list(interval)}
