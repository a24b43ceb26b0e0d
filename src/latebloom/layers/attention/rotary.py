"""Rotary positions.

Shapes: T tokens, E features per head.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.errors import ConfigError
from latebloom.fields import Positive
from latebloom.layers.attention.positions import PositionLayer, Positions


@dataclass(frozen=True, kw_only=True)
class Rotary(Positions):
    """RoPE: queries and keys are rotated by their position, so that their product depends on the distance."""

    name: Literal["rotary"] = "rotary"
    base: Positive = 10_000.0
    """The wavelength of the slowest rotation is 2 pi times this."""

    def build(self, width: int, heads: int) -> "RotaryLayer":
        return RotaryLayer(width // heads, self.base)

    def check(self, width: int, heads: int) -> None:
        require_pairs(width, heads)


class RotaryLayer(PositionLayer):
    """Rotates pairs of features, each pair at a frequency of its own."""

    def __init__(self, features: int, base: float) -> None:
        super().__init__()
        half = features // 2
        self.register_buffer("frequencies", base ** (-torch.arange(half) / half), persistent=False)
        self.frequencies: Tensor

    def queries_keys(self, q: Tensor, k: Tensor, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
        times = torch.arange(q.shape[-2], device=q.device) if times is None else times
        angles = times[:, None] * self.frequencies  # (T, E/2), in float32 whatever the model's precision
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

        def rotate(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

        return rotate(q), rotate(k)


def require_pairs(width: int, heads: int) -> None:
    """Raise unless the features of a head are pairs."""
    if (width // heads) % 2:
        raise ConfigError(
            f"rotary rotates pairs of features, so width / heads must be even; it is {width} / {heads} = "
            f"{width // heads}"
        )
