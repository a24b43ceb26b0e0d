"""The sLSTM as a recurrence (xLSTM, arXiv 2405.04517): an LSTM with exponential gates and a normalizer.

As in the authors' package, recurrent weights connect the units of a head, and the outputs are normalized per head. The
input projection connects all units, as in the paper's equations. There is no convolution before the gates.

Shapes: B sequences, T tokens, D width, H heads, E = D / H units per head.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.fields import Count
from latebloom.layers.mlp import Linear
from latebloom.layers.parts import check_heads
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.slstm.operation import State, first_state, slstm
from latebloom.layers.stacking import Stacking


@dataclass(frozen=True, kw_only=True)
class SLSTM(Recurrence):
    """One sLSTM layer of the xLSTM: exponential input gate, normalizer, recurrent weights within heads."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["slstm"] = "slstm"
    heads: Count = 4
    """Number of heads; it divides the width. Units of different heads do not see each other's hidden state."""
    forget_bias: tuple[float, float] = (3.0, 6.0)
    """The first biases of the forget gate, evenly spaced from the first unit of a head to its last."""
    zero_recurrent: bool = False
    """Start the recurrent weights at zero, as the authors' package does; otherwise they are drawn as an LSTM's are."""
    normalize: bool = True
    """Apply a layer norm without bias to the outputs of each head."""

    def check(self, width: int) -> None:
        check_heads(self.heads, width)

    def build(self, width: int) -> "SLSTMLayer":
        return SLSTMLayer(width, self)

    def state_size(self, width: int) -> int:
        return 4 * width


class SLSTMLayer(RecurrentLayer):
    """An sLSTM of D units."""

    def __init__(self, width: int, settings: SLSTM) -> None:
        super().__init__()
        head = width // settings.heads
        self.gates = Linear(width, 4 * width)
        self.recurrent = nn.Parameter(torch.zeros(settings.heads, head, 4 * head))
        self.norm_weight = nn.Parameter(torch.ones(width)) if settings.normalize else None
        nn.init.zeros_(self.gates.bias)
        with torch.no_grad():
            self.gates.bias.view(4, settings.heads, head)[1] = torch.linspace(*settings.forget_bias, head)
        if not settings.zero_recurrent:
            nn.init.uniform_(self.recurrent, -(head**-0.5), head**-0.5)

    def forward(self, x: Tensor, state: State | None = None, noise: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the state; the noise is added to the cell state in units of the normalizer."""
        if state is None:
            state = first_state(x)
        outputs, state = slstm(self.gates(x), self.recurrent, state, noise)
        if self.norm_weight is not None:
            by_head = outputs.unflatten(-1, (len(self.recurrent), -1))
            outputs = F.layer_norm(by_head, by_head.shape[-1:]).flatten(-2) * self.norm_weight
        return outputs, state
