"""The LSTM as a recurrence.

To add another recurrence, write a file like this one: settings with a `name` and a `build`, and a layer that returns
outputs and state. Declare `state_noise = True` if the layer adds `noise` to its state, and leave `stacking` out unless
torch has a batching rule for all that the layer does. `latebloom check FILE` tests it.

Shapes: B sequences, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from latebloom.layers.lstm.operation import Weights, lstm
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.stacking import Stacking

State = tuple[Tensor, Tensor]
"""The hidden state (B, D) and the cell state (B, D)."""


@dataclass(frozen=True, kw_only=True)
class LSTM(Recurrence):
    """One LSTM layer: oneDNN's on a CPU, cuDNN's on a GPU, and a kernel of this package for stacked models."""

    state_noise: ClassVar[bool] = True
    stacking: ClassVar[Stacking] = "vmap"

    name: Literal["lstm"] = "lstm"

    def build(self, width: int) -> "LSTMLayer":
        return LSTMLayer(width)

    def state_size(self, width: int) -> int:
        return 2 * width


class LSTMLayer(RecurrentLayer):
    """An LSTM of D units."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, batch_first=True)  # for the names, shapes and first values of its parameters

    def forward(self, x: Tensor, state: State | None = None, noise: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the hidden and cell state; noise is added to the cell state."""
        if state is None:
            state = (x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], x.shape[2]))
        outputs, hidden, cell = lstm(x, Weights(*self.cell.all_weights[0]), *state, noise)
        return outputs, (hidden, cell)
