"""The M²RNN as a recurrence (Mishra et al., arXiv 2603.14360): a nonlinear recurrence whose state is a matrix.

The layer is that of the authors' lm-engine without its convolution: queries, keys and values of each head, a softplus
decay as forget gate, the value added to what is read, an output gate, RMS norm and an output projection.

Shapes: B sequences, T tokens, D width, H heads, K key size, V = D / H value size.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.fields import Count
from latebloom.layers.gated_norm import gate_then_normalize
from latebloom.layers.m2rnn.operation import m2rnn
from latebloom.layers.mlp import Linear
from latebloom.layers.parts import Range, check_heads, check_range, first_decays, first_steps
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.stacking import Stacking


@dataclass(frozen=True, kw_only=True)
class M2RNN(Recurrence):
    """One M²RNN layer: a matrix state per head, H = f H + (1 - f) tanh(H W + k v^T), read by a query."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["m2rnn"] = "m2rnn"
    heads: Count = 4
    """Number of heads; it divides the width. The value size is the width divided by the heads."""
    key_size: Count = 16
    """Size of queries and keys of a head; its state has key_size times value size numbers."""
    state_weight: Literal["orthogonal", "normal", "identity"] = "orthogonal"
    """The first weights W: random orthogonal matrices, normal numbers, or the identity, as in lm-engine. Parity needs
    a W with negative eigenvalues, which is hard to reach from the identity."""
    rate_range: Range = (0.5, 2.0)
    """Range from which the decay rate of each head is drawn; the forget gate is exp(-rate * step). (0, 16) in
    lm-engine."""
    step_range: Range = (0.5, 1.0)
    """Range from which the first step of each head is drawn, evenly in its logarithm; it depends on the input.
    (0.001, 0.1) in lm-engine, where a head changes its state by a few percent per token at first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rate_range", self.rate_range, 0)
        check_range("step_range", self.step_range, 1e-6)

    def check(self, width: int) -> None:
        check_heads(self.heads, width)

    def build(self, width: int) -> "M2RNNLayer":
        return M2RNNLayer(width, self)

    def state_size(self, width: int) -> int:
        return self.key_size * width


class M2RNNLayer(RecurrentLayer):
    """An M²RNN of H heads."""

    def __init__(self, width: int, settings: M2RNN) -> None:
        super().__init__()
        heads, value_size = settings.heads, width // settings.heads
        self.heads = heads
        self.sizes = (heads * settings.key_size, heads * settings.key_size, width, width, heads)
        self.projection = Linear(width, sum(self.sizes))
        self.weight = nn.Parameter(torch.eye(value_size).repeat(heads, 1, 1))
        if settings.state_weight == "normal":
            nn.init.normal_(self.weight)
        elif settings.state_weight == "orthogonal":
            for matrix in self.weight.unbind():
                nn.init.orthogonal_(matrix)
        self.log_rate = first_decays(heads, settings.rate_range, least=1e-4)
        first_step = first_steps(heads, settings.step_range)
        self.skip = nn.Parameter(torch.ones(width))
        self.norm_weight = nn.Parameter(torch.ones(width))
        self.output = Linear(width, width)
        nn.init.zeros_(self.projection.bias)
        with torch.no_grad():
            self.projection.bias[-heads:] = first_step

    def forward(self, x: Tensor, state: Tensor | None = None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), and the state (B, H, K, V), into which noise is written along the key."""
        query, key, value, gate, step = self.projection(x).split(self.sizes, dim=-1)
        forget = torch.exp(-self.log_rate.exp() * F.softplus(step))
        query, key, values = (part.unflatten(-1, (self.heads, -1)) for part in (query, key, value))
        if state is None:
            state = x.new_zeros(x.shape[0], self.heads, key.shape[-1], values.shape[-1])
        noise = None if noise is None else noise.unflatten(-1, (self.heads, -1))
        read, state = m2rnn(query, key, values, forget, self.weight, state, noise)
        y = read.flatten(2) + self.skip * value
        return self.output(gate_then_normalize(y, self.norm_weight, gate)), state
