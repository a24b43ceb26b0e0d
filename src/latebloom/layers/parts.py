"""What linear recurrences share: short convolution, gated norm, and the first values of decay and step size.

Shapes: B sequences, T tokens, C channels, H heads, W tokens that a convolution sees.
"""

from math import isqrt, log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.errors import ConfigError, require
from latebloom.layers.convolution import short_convolution

Range = tuple[float, float]
"""The least and the largest value."""


class ShortConvolution(nn.Module):
    """A causal convolution over time of each channel by itself, followed by a SiLU; with W = 0 the SiLU alone.

    It starts as the identity plus the library's first weights. From the latter alone a key depends on all W tokens
    alike, and state tracking is learned late or not at all; from the identity alone, recall is learned late.
    """

    def __init__(self, channels: int, size: int, bias: bool = False) -> None:
        super().__init__()
        self.size = size
        bound = max(1, size) ** -0.5
        self.weight = nn.Parameter(torch.empty(size, channels).uniform_(-bound, bound)) if size else None
        self.bias = nn.Parameter(torch.zeros(channels)) if size and bias else None
        if self.weight is not None:
            with torch.no_grad():
                self.weight[-1] += 1.0

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return outputs (B, T, C) for x (B, T, C), and the last W - 1 inputs (B, W - 1, C).

        `before` are the W - 1 inputs before the first token; None stands for zeros.
        """
        if self.weight is None:
            return F.silu(x), x[:, :0]
        return short_convolution(x, before, self.weight, self.bias)


def unit_norm(x: Tensor) -> Tensor:
    """Divide x (..., C) by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def first_decays(count: int, bounds: Range, least: float = 1e-8) -> nn.Parameter:
    """Return logarithms of decay rates that are drawn uniformly."""
    return nn.Parameter(torch.empty(count).uniform_(*bounds).clamp(min=least).log())


def first_steps(count: int, bounds: Range) -> nn.Parameter:
    """Return biases whose softplus, the step size, is drawn uniformly in its logarithm."""
    return nn.Parameter(inverse_softplus(torch.empty(count).uniform_(log(bounds[0]), log(bounds[1])).exp()))


def inverse_softplus(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))


def check_range(field: str, bounds: Range, least: float) -> None:
    """Raise unless a range is ordered and does not begin below `least`."""
    require(
        least <= bounds[0] <= bounds[1] and bounds[1] > 0,
        field,
        bounds,
        f"two numbers in order, from {least:g} upwards",
    )


def check_heads(heads: int, width: int) -> None:
    """Raise unless the heads divide the width."""
    if width % heads:
        raise ConfigError(f"heads: {heads} does not divide width {width}; choices: {divisors(width)}")


def divisors(number: int) -> str:
    """Return the divisors of a number as text."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return ", ".join(map(str, sorted({*small, *(number // n for n in small)})))
