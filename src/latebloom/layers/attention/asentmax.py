"""Adaptive-scalable entmax (ASEntmax), arXiv 2506.16640: entmax whose scores are scaled with the number of tokens.

Shapes: B sequences, T tokens, D width, H heads.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.layers.attention.entmax import EntmaxLayer
from latebloom.layers.attention.scores import Scores, per_feature


@dataclass(frozen=True, kw_only=True)
class ASEntmax(Scores):
    """Entmax over scores times 1 + b log(1 + n)^c for n attended tokens; b and c are functions of the token."""

    name: Literal["asentmax"] = "asentmax"

    def build(self, width: int, heads: int) -> "ASEntmaxLayer":
        return ASEntmaxLayer(width, heads)


class ASEntmaxLayer(EntmaxLayer):
    """entmax((1 + b log(1 + n)^c) q k / sqrt(E)) with b = softplus(w x) and c = 2 tanh(u x) per head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.factor = nn.Linear(width, heads, bias=False)
        self.exponent = nn.Linear(width, heads, bias=False)

    def query_scale(self, x: Tensor, seen: Tensor) -> Tensor:
        factor, exponent = F.softplus(self.factor(x)), 2 * self.exponent(x).tanh()
        return per_feature(1 + factor * seen.log1p() ** exponent, x.shape[-1])
