"""Softmax with log-n scaling of the scores.

Softmax over n equal scores gives each 1/n. A score that stands out by a constant drowns among many others; one that
stands out by log(n) does not. Without a `reference_length` the scores of short sequences are scaled too, by 3.3 at 25
tokens, which is another temperature as well.

Shapes: B sequences, T tokens, D width.
"""

from dataclasses import dataclass
from math import log, log1p
from typing import Annotated, Literal

from torch import Tensor

from latebloom.errors import require
from latebloom.fields import Bound
from latebloom.layers.attention.scores import Scores
from latebloom.layers.attention.softmax import SoftmaxLayer


@dataclass(frozen=True, kw_only=True)
class LogN(Scores):
    """Softmax over dot products times log(1 + n) for n attended tokens, so that attention stays as sharp over many."""

    name: Literal["log_n"] = "log_n"
    reference_length: Annotated[int | None, Bound(lambda n: n is None or n >= 2, "2 or more, or null")] = None
    """The number of tokens at which the scores are not scaled, such as that of the longest training sequence: the
    factor is log(1 + n) / log(1 + reference_length). Null: log(1 + n)."""
    only_at_inference: bool = False
    """Train with plain softmax, and scale by log(n + reference_length) / log(reference_length) in evaluation mode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.reference_length is not None or not self.only_at_inference
        require(given, "only_at_inference", True, "false without a reference_length, because training has no scaling")

    def build(self, width: int, heads: int) -> "LogNLayer":
        return LogNLayer(self.reference_length, self.only_at_inference)


class LogNLayer(SoftmaxLayer):
    """softmax(log(1 + n) q k / sqrt(E)) over the n tokens up to each token."""

    def __init__(self, reference_length: int | None = None, only_at_inference: bool = False) -> None:
        super().__init__()
        self.reference_length, self.only_at_inference = reference_length, only_at_inference

    def query_scale(self, x: Tensor, seen: Tensor) -> Tensor | None:
        if self.reference_length is None:
            return seen.log1p()
        if not self.only_at_inference:
            return seen.log1p() / log1p(self.reference_length)
        return None if self.training else (seen + self.reference_length).log() / log(self.reference_length)
