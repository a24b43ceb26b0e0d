"""The LSTM, as a module around the operation.

Shapes: B sequences, T tokens, D width.
"""

from torch import Tensor, nn

from latebloom.kernels.lstm import Weights, lstm
from latebloom.models.recurrent.recurrence import Recurrence

State = tuple[Tensor, Tensor]


class LSTM(Recurrence):
    """One LSTM layer of D units, from oneDNN on a CPU and cuDNN on a GPU; stacked ones from a kernel of our own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, batch_first=True)  # for its parameters: names, shapes and first values

    def forward(self, x: Tensor, state: State | None = None, noise: Tensor | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the state (B, D) twice: what it says, and what it remembers."""
        if state is None:
            state = (x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], x.shape[2]))
        outputs, hidden, memory = lstm(x, Weights(*self.cell.all_weights[0]), *state, noise)
        return outputs, (hidden, memory)
