"""What the fused delta rule computes, and on which tensors.

Shapes: S stacked models, B sequences, T tokens, R = S B T rows, N delta steps per token, H heads, K key size, V value
size.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

Decay = Literal["none", "number", "log", "softplus"]
Shape = tuple[int, int, int]
"""S, B and T."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the fused delta rule computes."""

    heads: int
    key_size: int
    value_size: int
    steps: int = 1
    """Delta steps per token, of which the first decays, and the last reads and has noise."""
    raw: bool = False
    """Divide queries and keys by their lengths, take the sigmoid of beta, and multiply values by beta."""
    scale: float = 1.0
    """What queries are multiplied by."""
    most_beta: float = 1.0
    """What the sigmoid of beta is multiplied by."""
    decay: Decay = "none"
    """Whether a decay d stands for d, exp(d) or exp(-exp(rate) softplus(d + bias))."""
    channels: bool = False
    """Each key channel has a decay of its own; otherwise all channels of a head have the same."""

    def strides(self, terms: "Terms") -> tuple[int, ...]:
        """Return the strides between rows, between heads, and between the parameters of models."""
        parts = (terms.q, terms.k, terms.v, terms.beta, terms.decay)
        decays = self.key_size if self.channels else 1
        across = (self.key_size, self.key_size, self.value_size, 1, decays)
        rows = (0 if part is None else part.stride(0) for part in parts)
        # A single key for all heads is narrower than the heads.
        heads = (0 if part is None or part.shape[-1] == size < self.heads * size else size
                 for part, size in zip(parts, across, strict=True))  # fmt: skip
        models = (0 if part is None else part.stride(0) for part in (terms.rate, terms.bias))
        return *rows, *heads, *models


class Terms(NamedTuple):
    """What the fused delta rule is given: rows, which may be parts of wider rows, parameters and the state."""

    q: Tensor
    """(R, H K), or (R, K) for all heads."""
    k: Tensor
    """(R, N H K), or (R, K) for all heads."""
    v: Tensor
    """(R, N H V)"""
    beta: Tensor | None
    """(R, N H)"""
    decay: Tensor | None
    """(R, H), or (R, H K) of each key channel."""
    noise: Tensor | None
    """(R, H V)"""
    rate: Tensor | None
    """(S, H)"""
    bias: Tensor | None
    """(S, H), or (S, H K) of each key channel."""
    state: Tensor | None
    """(S, B, H, K, V)"""
