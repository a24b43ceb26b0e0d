"""Sigmoid attention with a bias for the length, arXiv 2409.04431.

Shapes: B sequences, T tokens, D width, H heads, R queries and K keys of a tile.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.tiles import Tile


@dataclass(frozen=True, kw_only=True)
class Sigmoid(Scores):
    """A sigmoid of each score less log n for n attended tokens: tokens do not compete for weight."""

    row_sum: ClassVar[float | None] = None

    name: Literal["sigmoid"] = "sigmoid"

    def build(self, width: int, heads: int) -> "SigmoidLayer":
        return SigmoidLayer()


class SigmoidLayer(ScoreLayer):
    """sigmoid(q k / sqrt(E) - log n) for the n tokens up to each token."""

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        return (scores - tile.seen.log()).sigmoid()
