"""Learned positions.

Shapes: B sequences, T tokens, D width.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError
from latebloom.fields import Count
from latebloom.layers.attention.positions import PositionLayer, Positions


@dataclass(frozen=True, kw_only=True)
class Learned(Positions):
    """A learned vector for every position, up to a fixed number of tokens."""

    name: Literal["learned"] = "learned"
    context: Count = 1024
    """The largest number of tokens."""

    @property
    def max_tokens(self) -> int:
        return self.context

    def build(self, width: int, heads: int) -> "LearnedLayer":
        return LearnedLayer(width, self.context)


class LearnedLayer(PositionLayer):
    """Adds a row of a learned table to each token."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(context, width) * 0.02)

    def inputs(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        require_cover(x.shape[1], self.table.shape[0], "learned")
        return x + (self.table[: x.shape[1]] if times is None else self.table[times])


def require_cover(tokens: int, context: int, kind: str) -> None:
    """Raise unless `context` positions are enough for the tokens."""
    if tokens > context:
        raise ConfigError(
            f"model.attention.positions.context: {context} {kind} positions do not cover {tokens} tokens; "
            f"set it to {tokens} or more, or choose positions none, rotary or alibi"
        )
