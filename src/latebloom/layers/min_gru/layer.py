"""The minGRU as a recurrence (Feng et al., arXiv 2410.01201): a GRU whose gates do not see the state.

Its state decays by a factor between 0 and 1 per unit, so it cannot track parity beyond its training length.

Shapes: B sequences, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.layers.min_gru.operation import min_gru
from latebloom.layers.mlp import Linear
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.stacking import Stacking


@dataclass(frozen=True, kw_only=True)
class MinGRU(Recurrence):
    """One minGRU layer, parallel over time: h = (1 - z) h + z c, with gate z and candidate c of the input alone."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["min_gru"] = "min_gru"
    positive: bool = True
    """Make the candidate positive, c + 1/2 above 0 and sigmoid(c) below, as the paper does for its log-space form."""
    update_bias: float = 0.0
    """The first bias of the update gate; below 0, the layer keeps its state for longer at first."""

    def build(self, width: int) -> "MinGRULayer":
        return MinGRULayer(width, self.positive, self.update_bias)

    def state_size(self, width: int) -> int:
        return width


class MinGRULayer(RecurrentLayer):
    """A minGRU of D units."""

    def __init__(self, width: int, positive: bool, update_bias: float) -> None:
        super().__init__()
        self.positive = positive
        self.candidate_update = Linear(width, 2 * width)
        with torch.no_grad():
            self.candidate_update.bias.copy_(torch.tensor([0.0, update_bias]).repeat_interleave(width))

    def forward(self, x: Tensor, state: Tensor | None = None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), and the hidden state (B, D), to which noise is added."""
        outputs = min_gru(self.candidate_update(x), state, noise, self.positive)
        return outputs, outputs[:, -1]
