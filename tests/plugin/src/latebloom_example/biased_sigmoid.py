"""Sigmoid attention with a learned bias."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.layers.attention import ScoreLayer, Scores, Tile


@dataclass(frozen=True, kw_only=True)
class BiasedSigmoid(Scores):
    """A sigmoid of each score in place of a softmax over all, with a learned bias per head."""

    row_sum: ClassVar[float | None] = None

    name: Literal["biased_sigmoid"] = "biased_sigmoid"
    bias: float = -3.0
    """Where the bias starts; below zero, so that a token takes little from most others."""

    def build(self, width: int, heads: int) -> "BiasedSigmoidLayer":
        return BiasedSigmoidLayer(heads, self.bias)


class BiasedSigmoidLayer(ScoreLayer):
    """sigmoid(q k / sqrt(E) + bias) for the tokens up to each token."""

    def __init__(self, heads: int, bias: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((heads, 1, 1), bias))

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        return (scores + self.bias).sigmoid()
