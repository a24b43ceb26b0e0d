"""Softmax over the k largest scores at inference.

Shapes: B sequences, T tokens, D width, H heads, E features per head, R queries and K keys of a tile.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.fields import Count
from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.softmax import SoftmaxLayer
from latebloom.layers.attention.tiles import PLAIN, Tile, Visibility


@dataclass(frozen=True, kw_only=True)
class TopK(Scores):
    """Softmax in training; in evaluation mode, softmax over the k largest scores of each token."""

    name: Literal["top_k"] = "top_k"
    k: Count = 16
    """How many tokens each token attends to in evaluation mode; scores equal to the k-th count too."""

    def build(self, width: int, heads: int) -> "TopKLayer":
        return TopKLayer(self.k)


class TopKLayer(SoftmaxLayer):
    """softmax(q k / sqrt(E)) over the k tokens with the largest scores."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        if not self.training:
            least = scores.topk(min(self.k, scores.shape[-1]), dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        return super().weights(scores, tile, x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, visibility: Visibility = PLAIN) -> Tensor:
        return (SoftmaxLayer if self.training else ScoreLayer).attend(self, q, k, v, x, visibility)

    def attend_joint(self, joint: Tensor, extra: Tensor | None, heads: int, x: Tensor) -> Tensor:
        return (SoftmaxLayer if self.training else ScoreLayer).attend_joint(self, joint, extra, heads, x)
