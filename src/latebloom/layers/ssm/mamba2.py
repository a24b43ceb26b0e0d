"""Mamba-2 (arXiv 2405.21060), with its inner width equal to the width of the model, and one group of B and C.

    x, B, C = SiLU(short convolution(projections of u))
    S = a S + B (dt x + noise)^T;  y = S^T C + skip x
    output = projection(RMS norm(y * SiLU(z)))

Shapes: B sequences, T tokens, D width, H heads, N state size, P = D / H head size.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.fields import Count, at_least
from latebloom.layers.gated_norm import gate_then_normalize
from latebloom.layers.parts import (
    Range,
    ShortConvolution,
    check_heads,
    check_range,
    first_decays,
    first_steps,
)
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.ssm.mamba2_inputs import mamba2_inputs
from latebloom.layers.ssm.operation import ssm
from latebloom.layers.stacking import Stacking

State = tuple[Tensor, Tensor]
"""The matrices (B, H, N, P), and the inputs that the short convolution still sees (B, kernel_size - 1, D + 2 N)."""


@dataclass(frozen=True, kw_only=True)
class Mamba2(Recurrence):
    """Mamba-2: S = a S + dt B x^T, with a = exp(-rate dt) per head and token; state noise is added to dt x."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["mamba2"] = "mamba2"
    heads: Count = 4
    """Number of heads; it divides the width."""
    key_size: Count = 16
    """The size of B and C (d_state in the literature)."""
    kernel_size: Annotated[int, at_least(0)] = 4
    """Tokens that the short convolution of x, B and C sees; 0: no convolution."""
    negative_eigenvalues: bool = False
    """Use 2 a - 1 in place of a, so that a token can flip the sign of the state; parity needs it."""
    rate_range: Range = (0.0, 1.0)
    """The range of the first decay rates (A in the literature, where it is 1 to 16 and a typical head forgets a twelfth
    of its state a token)."""
    step_range: Range = (0.001, 0.1)
    """The range of the first step sizes dt; a head forgets about rate * dt of its state a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rate_range", self.rate_range, 0.0)
        check_range("step_range", self.step_range, 1e-6)

    def state_size(self, width: int) -> int:
        return self.key_size * width + max(0, self.kernel_size - 1) * (width + 2 * self.key_size)

    def check(self, width: int) -> None:
        check_heads(self.heads, width)

    def build(self, width: int) -> "Mamba2Layer":
        return Mamba2Layer(width, self)


class Mamba2Layer(RecurrentLayer):
    """Mamba-2, with positive eigenvalues or with both signs."""

    def __init__(self, width: int, settings: Mamba2) -> None:
        super().__init__()
        self.settings, heads, size = settings, settings.heads, settings.key_size
        self.sizes = [width, width + 2 * size, heads]
        self.inputs = nn.Linear(width, sum(self.sizes), bias=False)
        self.convolution = ShortConvolution(width + 2 * size, settings.kernel_size, bias=True)
        self.rate = first_decays(heads, settings.rate_range)
        self.step = first_steps(heads, settings.step_range)
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.Parameter(torch.ones(width))
        self.outputs = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, state: State | None = None, noise: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the state."""
        memory, before = (None, None) if state is None else state
        size = self.settings.key_size
        gate, mixed, step = self.inputs(x).split(self.sizes, dim=-1)
        mixed, before = self.convolution(mixed, before)
        q, k, write, decay, values = mamba2_inputs(
            mixed, step, self.step, self.rate, noise, size, self.settings.negative_eigenvalues
        )
        y, memory = ssm(q[:, None], k[:, None], write, decay, memory)
        y = y.transpose(1, 2).flatten(2)
        return self.outputs(gate_then_normalize(y, self.norm, gate, self.skip, values)), (memory, before)
