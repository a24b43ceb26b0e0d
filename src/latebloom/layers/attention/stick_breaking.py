"""Stick-breaking attention, arXiv 2410.17980: each token, from the nearest back, takes a share of what is left.

Shapes: B sequences, T tokens, D width, H heads, R queries and K keys of a tile.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.tiles import Tile


@dataclass(frozen=True, kw_only=True)
class StickBreaking(Scores):
    """Stick-breaking attention: from the nearest token back, each takes the share sigmoid(score) of what is left.

    The query's own token takes the remainder.
    """

    name: Literal["stick_breaking"] = "stick_breaking"

    def build(self, width: int, heads: int) -> "StickBreakingLayer":
        return StickBreakingLayer()


class StickBreakingLayer(ScoreLayer):
    """log weight = log sigmoid(z) + the sum of log sigmoid(-z) over the tokens in between."""

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        queries, keys = tile.places()
        is_own = queries[:, None] == keys
        others = scores.masked_fill(is_own, -torch.inf)
        left = F.logsigmoid(-others)  # 0 for the tokens that are not attended to
        # Summed from the nearest token back, so that rounding grows with the distance, where weights are small.
        upto = left.flip(-1).cumsum(dim=-1).flip(-1)
        weights = (F.logsigmoid(others) + upto - left).exp()
        return torch.where(is_own, upto[..., :1].exp(), weights)
