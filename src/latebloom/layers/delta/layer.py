"""The layer of all recurrences with the delta rule, and the settings that they share.

    q, k, v = SiLU(short convolution(projections of x));  q and k have length 1
    S = decay S;  S = S + k (beta (v - S^T k) + noise)^T;  y = S^T q / sqrt(K)
    output = projection(RMS norm of each head(y) * gate(x))

Shapes: B sequences, T tokens, D width, H heads, K key size, V = D / H value size, N delta steps per token.
"""

from abc import ABC
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.fields import Count, at_least
from latebloom.layers.delta.form import Form
from latebloom.layers.delta.projected import Projections, projected_delta_rule
from latebloom.layers.gated_norm import normalize_then_gate
from latebloom.layers.parts import (
    Range,
    ShortConvolution,
    check_heads,
    check_range,
    first_decays,
    first_steps,
)
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.stacking import Stacking

State = tuple[Tensor, Tensor]
"""The matrices (B, H, K, V), and the inputs that the short convolution still sees (B, kernel_size - 1, channels)."""
Gate = Literal["silu", "sigmoid", "none"]
DecayOf = Literal["nothing", "heads", "channels"]


@dataclass(frozen=True, kw_only=True)
class DeltaRule(Recurrence, ABC):
    """Settings that every recurrence with the delta rule has. State noise is added to what is written under the key."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"
    decay_of: ClassVar[DecayOf] = "nothing"

    heads: Count = 4
    """Number of heads; it divides the width. A head has width / heads values."""
    key_size: Count = 16
    """The size of the keys and queries of a head."""
    kernel_size: Annotated[int, at_least(0)] = 4
    """Tokens that the short convolution of queries, keys and values sees; 0: no convolution."""
    negative_eigenvalues: bool = True
    """Beta in (0, 2), so that a step can reflect the state along the key; false: beta in (0, 1), which only erases."""
    output_gate: Gate = "silu"
    """The activation of the gate on the normalized outputs; none: no gate."""

    @property
    def steps_per_token(self) -> int:
        """The number N of delta steps that a token makes."""
        return 1

    @property
    def decays(self) -> int:
        """How many decays a token has."""
        return {"nothing": 0, "heads": self.heads, "channels": self.heads * self.key_size}[self.decay_of]

    def channels(self, width: int) -> int:
        """Return how many channels the short convolution has."""
        return self.heads * self.key_size + self.steps_per_token * (self.heads * self.key_size + width)

    def state_size(self, width: int) -> int:
        return self.key_size * width + max(0, self.kernel_size - 1) * self.channels(width)

    def check(self, width: int) -> None:
        check_heads(self.heads, width)

    def build(self, width: int) -> "DeltaLayer":
        return DeltaLayer(width, self)


@dataclass(frozen=True, kw_only=True)
class DecayingDeltaRule(DeltaRule, ABC):
    """Settings of the decay exp(-rate softplus(projection of x + bias)), which a recurrence may add."""

    decay_of: ClassVar[DecayOf] = "heads"

    rate_range: Range = (0.0, 1.0)
    """The range of the first decay rates (A in the literature, where it is 0 to 16)."""
    step_range: Range = (0.001, 0.1)
    """The range of the first step sizes (dt in the literature); a head forgets about rate * step a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rate_range", self.rate_range, 0.0)
        check_range("step_range", self.step_range, 1e-6)


class DeltaLayer(RecurrentLayer):
    """N steps of the delta rule per token, with or without decay."""

    def __init__(self, width: int, settings: DeltaRule) -> None:
        super().__init__()
        self.settings = settings
        heads, steps = settings.heads, settings.steps_per_token
        gate = 0 if settings.output_gate == "none" else width
        self.sizes = [settings.channels(width), steps * heads, settings.decays, gate]
        self.inputs = nn.Linear(width, sum(self.sizes), bias=False)
        self.convolution = ShortConvolution(settings.channels(width), settings.kernel_size)
        if isinstance(settings, DecayingDeltaRule) and settings.decays:
            self.rate = first_decays(heads, settings.rate_range)
            self.step = first_steps(settings.decays, settings.step_range)
        self.form = Form(
            heads=heads,
            key_size=settings.key_size,
            value_size=width // heads,
            steps=steps,
            raw=True,
            scale=settings.key_size**-0.5,
            most_beta=2.0 if settings.negative_eigenvalues else 1.0,
            decay="softplus" if settings.decays else "none",
            channels=settings.decay_of == "channels",
        )
        self.norm = nn.Parameter(torch.ones(width // heads))
        self.outputs = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, state: State | None = None, noise: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the state."""
        memory, before = (None, None) if state is None else state
        mixed, beta, step, gate = self.inputs(x).split(self.sizes, dim=-1)
        mixed, before = self.convolution(mixed, before)
        decays = (step, noise, self.rate, self.step) if self.settings.decays else (None, noise, None, None)
        y, memory = projected_delta_rule(Projections(mixed, beta, *decays), memory, self.form)
        y = normalize_then_gate(y, self.norm, gate, self.settings.output_gate)
        return self.outputs(y), (memory, before)
