"""The GRU as a recurrence (Cho et al., arXiv 1406.1078, in torch's form).

Shapes: B sequences, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.layers.gru.operation import Weights, gru
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.stacking import Stacking


@dataclass(frozen=True, kw_only=True)
class GRU(Recurrence):
    """One GRU layer: the library's on a CPU and a GPU, and a kernel of this package for stacked models."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["gru"] = "gru"
    update_bias: float = 0.0
    """Added to the initial bias of the update gate; above 0, the layer keeps its state for longer at first."""

    def build(self, width: int) -> "GRULayer":
        return GRULayer(width, self.update_bias)

    def state_size(self, width: int) -> int:
        return width


class GRULayer(RecurrentLayer):
    """A GRU of D units."""

    def __init__(self, width: int, update_bias: float = 0.0) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)  # for the names, shapes and first values of its parameters
        input_bias = self.cell.all_weights[0][2]
        with torch.no_grad():
            input_bias[width : 2 * width] += update_bias

    def forward(self, x: Tensor, state: Tensor | None = None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), and the hidden state (B, D), to which noise is added."""
        if state is None:
            state = x.new_zeros(x.shape[0], x.shape[2])
        return gru(x, Weights(*self.cell.all_weights[0]), state, noise)
