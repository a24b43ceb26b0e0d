"""Sigmoid attention."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.layers.attention import ScoreLayer, Scores


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Scores):
    """A sigmoid of each score in place of a softmax over all, with a learned bias per head."""

    row_sum: ClassVar[float | None] = None

    name: Literal["sigmoid"] = "sigmoid"
    bias: float = -3.0
    """Where the bias starts; below zero, so that a token takes little from most others."""

    def build(self, width: int, heads: int) -> "SigmoidLayer":
        return SigmoidLayer(heads, self.bias)


class SigmoidLayer(ScoreLayer):
    """sigmoid(q k / sqrt(E) + bias) for the tokens up to each token."""

    def __init__(self, heads: int, bias: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((heads, 1, 1), bias))

    def weights(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return (scores + self.bias).sigmoid().tril()
