"""ALiBi, arXiv 2108.12409: attention with linear biases.

Shapes: H heads, R queries, K keys.
"""

from dataclasses import dataclass
from math import floor, log2
from typing import Literal

import torch
from torch import Tensor

from latebloom.layers.attention.positions import PositionLayer, Positions


@dataclass(frozen=True, kw_only=True)
class Alibi(Positions):
    """ALiBi: each head subtracts slope * distance from the scores; the slopes are not learned."""

    name: Literal["alibi"] = "alibi"

    def build(self, width: int, heads: int) -> "AlibiLayer":
        return AlibiLayer(heads)


class AlibiLayer(PositionLayer):
    """-slope * distance, with the slopes 2^(-8/H), 2^(-16/H), ... of H heads."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(slopes_of(heads)), persistent=False)
        self.slopes: Tensor

    def score_bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.slopes[:, None, None] * (keys - queries[:, None]).to(self.slopes.dtype)


def slopes_of(heads: int) -> list[float]:
    """Return the slopes; after the largest power of two, those of twice as many heads follow, every second one."""
    power = 2 ** floor(log2(heads))
    regular = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return regular + between[: heads - power]
