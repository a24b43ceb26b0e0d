"""The LSTM: the library's fast path, and the loop that says what it computes.

Shapes: B sequences, T tokens, D width.
"""

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LSTM(nn.Module):
    """One LSTM layer of D units, from oneDNN on a CPU and cuDNN on a GPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """(B, T, D) -> (B, T, D), and the state (1, B, D) twice: what it says, and what it remembers."""
        return self.cell(x, state)


def lstm_loop(cell: nn.LSTM, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """What `LSTM` computes, one token at a time: the specification of every faster path."""
    batch, tokens, width = x.shape
    if state is None:
        state = (x.new_zeros(1, batch, width), x.new_zeros(1, batch, width))
    hidden, memory = state[0][0], state[1][0]
    outputs = []
    input_weight, hidden_weight, input_bias, hidden_bias = cell.all_weights[0]
    for t in range(tokens):
        gates = x[:, t] @ input_weight.T + input_bias + hidden @ hidden_weight.T + hidden_bias
        admit, keep, candidate, reveal = gates.chunk(4, dim=1)
        memory = keep.sigmoid() * memory + admit.sigmoid() * candidate.tanh()
        hidden = reveal.sigmoid() * memory.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, dim=1), (hidden[None], memory[None])
