"""Randomised positions, arXiv 2305.16843: training draws ordered positions from a range longer than its sequences.

Every position that a long test sequence needs has then been seen in training.

Shapes: B sequences, T tokens, D width, H heads, E features per head.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.fields import Count
from latebloom.layers.attention.learned import LearnedLayer, require_cover
from latebloom.layers.attention.positions import PositionLayer, Positions
from latebloom.layers.attention.rotary import Rotary, RotaryLayer, require_pairs


@dataclass(frozen=True, kw_only=True)
class Randomised(Positions):
    """Ordered positions, drawn for each training batch from a longer range, in a learned or rotary encoding."""

    name: Literal["randomised"] = "randomised"
    encoding: Literal["learned", "rotary"] = "learned"
    """How a position is encoded."""
    context: Count = 1024
    """The number of positions that are drawn from, and the largest number of tokens. In evaluation mode the tokens
    are spread evenly over it."""

    @property
    def max_tokens(self) -> int:
        return self.context

    @property
    def drawn_from(self) -> int:
        return self.context

    def build(self, width: int, heads: int) -> PositionLayer:
        if self.encoding == "learned":
            return RandomisedLearnedLayer(width, self.context)
        return RandomisedRotaryLayer(width // heads, Rotary().base, self.context)

    def check(self, width: int, heads: int) -> None:
        if self.encoding == "rotary":
            require_pairs(width, heads)


class RandomisedLearnedLayer(LearnedLayer):
    """Adds the rows of a learned table at the positions of the tokens."""

    def inputs(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        return super().inputs(x, positions_of(self, x.shape[1], self.table.shape[0], times, x.device))


class RandomisedRotaryLayer(RotaryLayer):
    """Rotates queries and keys by the positions of the tokens."""

    def __init__(self, features: int, base: float, context: int) -> None:
        super().__init__(features, base)
        self.context = context

    def queries_keys(self, q: Tensor, k: Tensor, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().queries_keys(q, k, positions_of(self, q.shape[-2], self.context, times, q.device))


def positions_of(layer: PositionLayer, tokens: int, context: int, times: Tensor | None, device: torch.device) -> Tensor:
    """Return the positions (T,) of the tokens.

    Trainers of this package give `times`. In a training loop of another kind they are drawn with torch's generator.
    """
    require_cover(tokens, context, "randomised")
    if times is not None:
        return times
    if layer.training:
        return torch.randperm(context, device=device)[:tokens].sort().values
    return (2 * torch.arange(tokens, device=device) + 1) * context // (2 * tokens)
