"""How attention knows where a token stands. Each kind is a module with two places to act:

    inputs(x)            (B, T, D) before queries, keys and values are made
    queries_keys(q, k)   (B, H, T, E) each, before they are compared

Shapes: B sequences, T tokens, D width, H heads, E features a head.
"""

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError


class NoPositions(nn.Module):
    """Attention sees a set; order comes from the recurrence before it and from causality."""

    turns = False
    """Whether `queries_keys` does anything."""

    def inputs(self, x: Tensor) -> Tensor:
        return x

    def queries_keys(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class Rotary(NoPositions):
    """RoPE: features turn with the position, so that a comparison sees the distance."""

    turns = True

    def __init__(self, features: int, base: float = 10_000.0) -> None:
        super().__init__()
        half = features // 2
        self.register_buffer("frequencies", base ** (-torch.arange(half) / half), persistent=False)
        self.frequencies: Tensor

    def queries_keys(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        times = torch.arange(q.shape[-2], device=q.device)
        angles = times[:, None] * self.frequencies  # (T, E/2), in float32 whatever the model's precision
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

        return turned(q), turned(k)


class Learned(NoPositions):
    """A learned vector for every position, up to a fixed number of tokens."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(context, width) * 0.02)

    def inputs(self, x: Tensor) -> Tensor:
        tokens, context = x.shape[1], self.table.shape[0]
        if tokens > context:
            raise ConfigError(
                f"model.attention.context: {context} learned positions do not cover {tokens} tokens; "
                f"set it to {tokens} or more, or choose positions none or rotary"
            )
        return x + self.table[:tokens]
