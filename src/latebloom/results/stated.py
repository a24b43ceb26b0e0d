"""What a study states before its results are made, kept with every run: hypotheses, negative controls, selections."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from latebloom.errors import ConfigError, ResultsError, require
from latebloom.reading import parse_json


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A prediction about the paired difference of two arms on one task."""

    task: str
    """The group of both arms."""
    arm: str
    baseline: str
    at: float
    """The tested length, in training lengths."""
    points: float = 5.0
    """The least difference arm - baseline, in percentage points of accuracy."""
    equal: bool = False
    """Predict that the arms differ by less than `points` in either direction instead."""
    answer: str | None = None
    """The answer whose accuracy is compared; all answers together unless given."""

    def __post_init__(self) -> None:
        require(self.points > 0, "points", self.points, "above 0: any difference is above or below 0")

    @property
    def arms(self) -> tuple[str, ...]:
        return self.arm, self.baseline


@dataclass(frozen=True, kw_only=True)
class Level:
    """A prediction about how many seeds of an arm are accurate."""

    task: str
    arm: str
    at: float
    """The tested length, in training lengths."""
    accuracy: float = 0.9
    """A seed counts if its accuracy is at least this."""
    least: float | None = None
    """The least share of seeds that count."""
    most: float | None = None
    """The largest share of seeds that count; one of both is given."""
    answer: str | None = None
    """The answer whose accuracy is meant; all answers together unless given."""

    def __post_init__(self) -> None:
        if (self.least is None) == (self.most is None):
            raise ConfigError(f"least: give either least or most; they are {self.least} and {self.most}")

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm,)


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """A prediction that the loss of a language model, arm - baseline, is below a bound, with its interval."""

    task: str
    arm: str
    baseline: str
    at: float
    """The tested context, in training contexts."""
    beyond: bool = False
    """Take the mean over all tested contexts from `at` on."""
    below: float = 0.0
    """The bound, in nats."""
    matched: tuple[str, ...] = ()
    """Arms like the baseline that were trained for less. With them, each seed of the arm is compared with the loss that
    the baseline has where its loss at 1x is the same, by linear interpolation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "matched", tuple(self.matched))  # JSON has lists

    @property
    def arms(self) -> tuple[str, ...]:
        return self.arm, self.baseline, *self.matched


Prediction = Difference | Level | LossChange


@dataclass(frozen=True)
class Hypothesis:
    """A sentence that the results of a study support or refute."""

    claim: str
    """What is expected, in a sentence."""
    refuted_if: str
    """What would refute it, in a sentence; the predictions say the same in numbers."""
    predictions: Sequence[Prediction]
    """The comparisons that decide it. It is supported if all hold, and refuted if one of them does not."""

    def __post_init__(self) -> None:
        require(len(self.predictions) >= 1, "predictions", self.predictions, "at least one Difference or Level")


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """A selection that the report shows as an arm of its own: of every `runs` seeds in a row, the best one.

    The best is the one with the highest accuracy on held-out sequences, measured at the last step of training at `at`
    times the training length. The run must measure there (training.watch).
    """

    runs: int = 3
    at: float = 2.0
    against: tuple[str, ...] = ()
    """The arms that it is compared with."""

    def name(self, arm: str) -> str:
        """Return the name of the selection in the report."""
        return f"{arm} (best of {self.runs})"


@dataclass(frozen=True)
class Stated:
    """What the study of a run states: its hypotheses, and whether the arm is a negative control or selected from."""

    hypotheses: tuple[Hypothesis, ...] = ()
    control: bool = False
    best_of: BestOf | None = None

    def to_text(self) -> str:
        """Return JSON that `from_text` reads; empty if nothing is stated."""
        if self == Stated():
            return ""
        predictions = [[_prediction(one) for one in each.predictions] for each in self.hypotheses]
        hypotheses = [
            {"claim": one.claim, "refuted_if": one.refuted_if, "predictions": found}
            for one, found in zip(self.hypotheses, predictions, strict=True)
        ]
        best_of = None if self.best_of is None else asdict(self.best_of)
        return json.dumps({"hypotheses": hypotheses, "control": self.control, "best_of": best_of})

    @classmethod
    def from_text(cls, text: str) -> "Stated":
        if not text:
            return cls()
        try:
            data = parse_json(text)
            hypotheses = tuple(
                Hypothesis(one["claim"], one["refuted_if"], tuple(map(_read_prediction, one["predictions"])))
                for one in data["hypotheses"]
            )
            best_of = data["best_of"] and BestOf(**{**data["best_of"], "against": tuple(data["best_of"]["against"])})
            return cls(hypotheses, bool(data["control"]), best_of)
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise ResultsError(f"results: what a study states cannot be read ({type(error).__name__})") from None


def _prediction(one: Prediction) -> dict[str, Any]:
    return {"kind": type(one).__name__.lower(), **asdict(one)}


def _read_prediction(data: dict[str, Any]) -> Prediction:
    kinds: dict[str, type[Prediction]] = {"difference": Difference, "level": Level, "losschange": LossChange}
    return kinds[data["kind"]](**{name: value for name, value in data.items() if name != "kind"})
