"""Softmax scores.

Shapes: B sequences, T tokens, D width, H heads, E features per head.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from latebloom.layers.attention.operation import causal_attention, joint_attention
from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.tiles import PLAIN, Tile, Visibility


@dataclass(frozen=True, kw_only=True)
class Softmax(Scores):
    """Softmax over scaled dot products."""

    name: Literal["softmax"] = "softmax"

    def build(self, width: int, heads: int) -> "SoftmaxLayer":
        return SoftmaxLayer()


class SoftmaxLayer(ScoreLayer):
    """softmax(q k / sqrt(E)) over the tokens up to each token."""

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, visibility: Visibility = PLAIN) -> Tensor:
        return causal_attention(q, k, v) if visibility.is_plain else super().attend(q, k, v, x, visibility)

    def attend_joint(self, joint: Tensor, extra: Tensor | None, heads: int, x: Tensor) -> Tensor:
        return joint_attention(joint, extra, heads)
