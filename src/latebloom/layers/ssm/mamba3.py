"""Mamba-3 (arXiv 2603.15569) with one input and one output per head, and one group of B and C.

    theta = theta + pi tanh(omega) dt;  k = B rotated by theta;  q = C rotated by theta;  a = exp(-rate dt)
    S = a S + (1 - lam) dt a k' v'^T + k (lam dt v + noise)^T;  y = S^T q + skip v
    output = projection(y * SiLU(z))

k' and v' are those of the token before: the update is a trapezoidal rule with a weight lam that the input chooses. The
state turns by up to pi dt a token. B and C are normalized, and have a bias for each head.

Shapes: B sequences, T tokens, D width, H heads, N state size, P = D / H head size, R pairs of channels that rotate.
"""

from dataclasses import dataclass, field
from math import ceil, pi
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.errors import require
from latebloom.fields import Bound, Count, first_default
from latebloom.layers.gated_norm import rms_norm
from latebloom.layers.parts import Range, check_heads, check_range, first_steps, inverse_softplus
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.ssm.mamba3_fused import mamba3_inputs, mamba3_outputs, uses_fused_kernels
from latebloom.layers.ssm.operation import ssm
from latebloom.layers.ssm.rotate import rotate
from latebloom.layers.stacking import Stacking

LEAST_RATE = 1e-4
"""Decay rates are never smaller, as in the original."""


class State(NamedTuple):
    """What Mamba-3 carries from token to token."""

    angle: Tensor
    """(B, H, R) theta, from 0 to 2 pi."""
    memory: Tensor
    """(B, H, N, P) S."""
    key: Tensor
    """(B, H, N) the rotated key of the last token."""
    value: Tensor
    """(B, H, P) the value of the last token."""


class Terms(NamedTuple):
    """The terms of the recurrence, for every token."""

    q: Tensor
    """(B, H, T, N) C before the rotation."""
    k: Tensor
    """(B, H, T, N) B before the rotation."""
    values: Tensor
    """(B, H, T, P)"""
    turn: Tensor
    """(B, H, T, R) by how much theta grows."""
    log_decay: Tensor
    """(B, H, T) log a, below 0."""
    earlier: Tensor
    """(B, H, T) (1 - lam) dt, the weight of the token before."""
    own: Tensor
    """(B, H, T) lam dt, the weight of the token itself."""


@dataclass(frozen=True, kw_only=True)
class Mamba3(Recurrence):
    """Mamba-3: a decaying state that rotates by angles which the input chooses; state noise is added to lam dt v."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["mamba3"] = "mamba3"
    heads: Count = 4
    """Number of heads; it divides the width."""
    key_size: Count = 16
    """The size of B and C (d_state in the literature)."""
    rotated: Annotated[float, Bound(lambda share: 0 < share <= 1, "above 0 and at most 1")] = 1.0
    """The share of the channels of B and C that rotate; the original has 0.5, with more channels."""
    rate_range: Range = (0.001, 0.1)
    """The range of the first decay rates; the original starts at 0.69."""
    step_range: Range = field(default=(0.001, 1.0), metadata=first_default((0.5, 1.0)))
    """The range of the first step sizes dt, which in the original is 0.001 to 0.1. A token turns the state by at most
    pi dt: heads with small steps keep the direction of keys, so that they can recall, and heads with large steps can
    count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rate_range", self.rate_range, LEAST_RATE)
        check_range("step_range", self.step_range, 1e-6)
        require(self.pairs >= 1, "key_size", self.key_size, f"{ceil(2 / self.rotated)} or more")

    @property
    def pairs(self) -> int:
        """The number R of pairs of channels that rotate."""
        return int(self.key_size * self.rotated) // 2

    def state_size(self, width: int) -> int:
        return self.key_size * width + self.heads * (self.key_size + self.pairs) + width

    def check(self, width: int) -> None:
        check_heads(self.heads, width)

    def build(self, width: int) -> "Mamba3Layer":
        return Mamba3Layer(width, self)


class Mamba3Layer(RecurrentLayer):
    """Mamba-3."""

    def __init__(self, width: int, settings: Mamba3) -> None:
        super().__init__()
        self.settings, heads, size = settings, settings.heads, settings.key_size
        self.sizes = [width, width, size, size, heads, heads, heads, settings.pairs]
        self.inputs = nn.Linear(width, sum(self.sizes), bias=False)
        self.step = first_steps(heads, settings.step_range)
        self.rate = nn.Parameter(inverse_softplus(torch.empty(heads).uniform_(*settings.rate_range)))
        self.norms = nn.Parameter(torch.ones(2, size))
        self.biases = nn.Parameter(torch.ones(2, heads, size))
        self.skip = nn.Parameter(torch.ones(heads))
        self.outputs = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, state: State | None = None, noise: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the state."""
        if uses_fused_kernels(x, max(x.shape[-1], self.settings.heads * self.settings.key_size)):
            return self._fused(x, state, noise)
        gate, terms = self._terms(x)
        extra = None if noise is None else noise.unflatten(-1, (self.settings.heads, -1)).transpose(1, 2)
        y, state = trapezoidal(terms, state, extra)
        y = (y + self.skip[:, None, None] * terms.values).transpose(1, 2).flatten(2)
        return self.outputs(y * F.silu(gate)), state

    def _fused(self, x: Tensor, state: State | None, noise: Tensor | None) -> tuple[Tensor, State]:
        """Compute `forward` with the fused kernels."""
        angle = None if state is None else state.angle
        parts = mamba3_inputs(
            self.inputs(x), self.norms, self.biases, self.step, self.rate, angle, noise, self.sizes, LEAST_RATE
        )
        write = parts.write.unflatten(-1, (self.settings.heads, -1))
        q, k, write, decay = (part.transpose(1, 2) for part in (parts.q, parts.k, write, parts.decay))
        memory = None
        if state is not None:
            memory = state.memory + parts.first[..., None, None] * state.key[..., :, None] * state.value[..., None, :]
        y, memory = ssm(q, k, write, decay, memory)
        y = y.transpose(1, 2).flatten(2)
        y = mamba3_outputs(y, parts.values, parts.gate, parts.correction, self.skip)
        value = parts.values[:, -1].unflatten(-1, (self.settings.heads, -1))
        return self.outputs(y), State(parts.angle, memory, k[:, :, -1], value)

    def _terms(self, x: Tensor) -> tuple[Tensor, Terms]:
        gate, values, k, q, step, rate, share, omega = self.inputs(x).split(self.sizes, dim=-1)
        q, k = ((rms_norm(part, self.norms[i])[:, None] + self.biases[i, :, None, :]) for i, part in enumerate((q, k)))
        step, rate, share = (part.transpose(1, 2) for part in (step, rate, share))
        step = F.softplus(step + self.step[:, None])
        rate = F.softplus(rate + self.rate[:, None]).clamp(min=LEAST_RATE)
        turn = pi * omega.tanh()[:, None] * step[..., None]
        own = share.sigmoid() * step
        values = values.unflatten(-1, (self.settings.heads, -1)).transpose(1, 2)
        return gate, Terms(q, k, values, turn, -rate * step, step - own, own)


def trapezoidal_loop(terms: Terms, state: State | None, noise: Tensor | None) -> tuple[Tensor, State]:
    """Compute Mamba-3's recurrence token by token: the specification of `trapezoidal`."""
    angle, memory, key, value = _first_state(terms) if state is None else state
    outputs = []
    for t in range(terms.values.shape[2]):
        q, k, v, turn, log_decay, earlier, own = (part[:, :, t] for part in terms)
        angle = torch.remainder(angle + turn, 2 * pi)
        q, k = rotate(q, angle), rotate(k, angle)
        written = own[..., None] * v + (0.0 if noise is None else noise[:, :, t])
        before = earlier[..., None, None] * key[..., :, None] * value[..., None, :]
        memory = log_decay.exp()[..., None, None] * (memory + before) + k[..., :, None] * written[..., None, :]
        outputs.append((q[..., :, None] * memory).sum(dim=-2))
        key, value = k, v
    return torch.stack(outputs, dim=2), State(angle, memory, key, value)


def trapezoidal(terms: Terms, state: State | None, noise: Tensor | None) -> tuple[Tensor, State]:
    """Compute Mamba-3's recurrence in chunks, with noise (B, H, T, P) added to what a token writes.

    A value is written by its own token, and once more by the next one under the same key. Both are one write, from
    which the output of the token itself subtracts the second.
    """
    q, k, values, turn, log_decay, earlier, own = terms
    # In float32 the sum of thousands of angles would lose the digits that their rotation needs.
    angle = turn.double().cumsum(2)
    if state is not None:
        angle = angle + state.angle[:, :, None]
    angle = torch.remainder(angle, 2 * pi).to(turn.dtype)
    q, k = rotate(q, angle), rotate(k, angle)
    memory = None
    if state is not None:
        memory = state.memory + earlier[:, :, 0, None, None] * state.key[..., :, None] * state.value[..., None, :]
    later = F.pad(earlier[:, :, 1:], (0, 1))[..., None]
    write = (own[..., None] + later) * values
    outputs, memory = ssm(q, k, write if noise is None else write + noise, log_decay.exp(), memory)
    outputs = outputs - (q * k).sum(-1, keepdim=True) * later * values
    return outputs, State(angle[:, :, -1], memory, k[:, :, -1], values[:, :, -1])


def _first_state(terms: Terms) -> State:
    batch, heads, _, pairs = terms.turn.shape
    size, head_size = terms.k.shape[-1], terms.values.shape[-1]
    sizes: Any = ((pairs,), (size, head_size), (size,), (head_size,))
    return State(*(terms.values.new_zeros(batch, heads, *shape) for shape in sizes))
