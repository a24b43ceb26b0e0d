"""Forgetting attention (FoX), arXiv 2503.02130: softmax with a learned forget gate for each token and head.

Shapes: B sequences, T tokens, D width, H heads, R queries and K keys of a tile.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.tiles import Tile


@dataclass(frozen=True, kw_only=True)
class Forgetting(Scores):
    """Softmax over scores plus the logarithms of the forget gates of all tokens between key and query."""

    name: Literal["forgetting"] = "forgetting"
    bias: float = 4.0
    """Where the bias of the gate starts; at 4 each token keeps 98% of what was before it."""

    def build(self, width: int, heads: int) -> "ForgettingLayer":
        return ForgettingLayer(width, heads, self.bias)


class ForgettingLayer(ScoreLayer):
    """softmax(q k / sqrt(E) + the sum of log sigmoid(w x + b) from after the key to the query)."""

    def __init__(self, width: int, heads: int, bias: float) -> None:
        super().__init__()
        self.gate = nn.Linear(width, heads)
        nn.init.constant_(self.gate.bias, bias)

    def weights(self, scores: Tensor, tile: Tile, x: Tensor) -> Tensor:
        kept = F.logsigmoid(self.gate(x)).double().cumsum(dim=1).transpose(1, 2)  # (B, H, T)
        # Counted from the first query of the tile, because float32 would lose the difference of two long sums.
        kept = (kept - kept[..., tile.queries.start : tile.queries.start + 1]).to(scores.dtype)
        bias = kept[..., tile.queries, None] - kept[..., None, tile.keys]
        return (scores + bias).softmax(dim=-1)
