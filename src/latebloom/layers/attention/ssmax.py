"""Scalable-Softmax (SSMax), arXiv 2501.19399: log-n scaling with a learned factor per head.

Shapes: B sequences, T tokens, D width, H heads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from latebloom.fields import Positive
from latebloom.layers.attention.scores import Scores, per_feature
from latebloom.layers.attention.softmax import SoftmaxLayer


@dataclass(frozen=True, kw_only=True)
class SSMax(Scores):
    """Softmax over dot products times s log n for n attended tokens, with a learned s per head."""

    name: Literal["ssmax"] = "ssmax"
    initial: Positive = 0.3
    """Where s starts; at 0.3 the scores of 28 tokens have the scale that plain softmax gives them."""
    bias: bool = False
    """Learn b per head in (s log n + b) too; it starts at 0. It can make long sequences worse."""

    def build(self, width: int, heads: int) -> "SSMaxLayer":
        return SSMaxLayer(heads, self.initial, self.bias)


class SSMaxLayer(SoftmaxLayer):
    """softmax((s log n + b) q k / sqrt(E)) over the n tokens up to each token."""

    def __init__(self, heads: int, initial: float, bias: bool) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((heads,), initial))
        self.bias = nn.Parameter(torch.zeros(heads)) if bias else None

    def query_scale(self, x: Tensor, seen: Tensor) -> Tensor:
        scale = seen.log() * self.factor
        return per_feature(scale if self.bias is None else scale + self.bias, x.shape[-1])
