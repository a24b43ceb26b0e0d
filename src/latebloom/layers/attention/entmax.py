"""Entmax with alpha = 1.5, arXiv 1905.05702: a sparse softmax, computed exactly by sorting.

With z halved, the weights are max(z - tau, 0)^2 for the one threshold tau at which they add up to 1.

Shapes: B sequences, T tokens, D width, H heads, R queries and K keys of a tile.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.tiles import Tile


@dataclass(frozen=True, kw_only=True)
class Entmax(Scores):
    """Entmax (alpha 1.5) over scaled dot products: tokens far below the best have a weight of exactly zero."""

    name: Literal["entmax"] = "entmax"

    def build(self, width: int, heads: int) -> "EntmaxLayer":
        return EntmaxLayer()


class EntmaxLayer(ScoreLayer):
    """entmax(q k / sqrt(E)) over the tokens up to each token."""

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        return entmax(scores)


def entmax(scores: Tensor) -> Tensor:
    """Return the 1.5-entmax over the last axis; scores may be -inf, but not all of a row."""
    halved = scores / 2
    # The largest weight is at most 1, so tau is at least -1 below the largest score, and lower scores do not matter.
    z = (halved - halved.amax(dim=-1, keepdim=True).detach()).clamp(min=-1.0)
    with torch.no_grad():
        support = z > _threshold(z)
    # The threshold again, from the scores above it. Its gradient is exact, and the sums of squares are of differences
    # from the mean, which float32 adds up over thousands of tokens without loss.
    size = support.sum(dim=-1, keepdim=True)
    mean = torch.where(support, z, 0.0).sum(dim=-1, keepdim=True) / size
    spread = torch.where(support, (z - mean).square(), 0.0).sum(dim=-1, keepdim=True)
    tau = mean - ((1 - spread) / size).clamp(min=torch.finfo(z.dtype).tiny).sqrt()
    return (z - tau).clamp(min=0.0).square()


def _threshold(z: Tensor) -> Tensor:
    """Return tau (..., 1), from the largest k for which the k largest scores are all above their own threshold."""
    ordered = z.sort(dim=-1, descending=True).values.double()
    size = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=torch.double)
    mean = ordered.cumsum(dim=-1) / size
    spread = ordered.square().cumsum(dim=-1) - size * mean.square()
    taus = mean - ((1 - spread) / size).clamp(min=0.0).sqrt()
    last = (taus <= ordered).sum(dim=-1, keepdim=True) - 1
    return taus.gather(-1, last).to(z.dtype)
