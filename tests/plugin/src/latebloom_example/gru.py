"""A gated recurrent unit."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.layers.recurrence import Recurrence, RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class GRU(Recurrence):
    """A gated recurrent unit, from torch."""

    state_noise: ClassVar[bool] = True

    name: Literal["gru"] = "gru"
    bias: bool = True
    """Whether the gates have a bias."""

    def build(self, width: int) -> "GRULayer":
        return GRULayer(width, self.bias)

    def state_size(self, width: int) -> int:
        return width


class GRULayer(RecurrentLayer):
    """One GRU layer. The state is (1, B, D), as torch has it."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width, bias=bias, batch_first=True)

    def forward(self, x: Tensor, state: Tensor | None = None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if noise is None:
            return self.gru(x, state)
        current = x.new_zeros(1, x.shape[0], x.shape[2]) if state is None else state
        outputs = []
        for t in range(x.shape[1]):  # noise enters between tokens, so torch's layer takes them one by one
            current = self.gru(x[:, t : t + 1], current)[1] + noise[None, :, t]
            outputs.append(current[0])
        return torch.stack(outputs, dim=1), current
