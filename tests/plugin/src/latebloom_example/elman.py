"""An Elman network."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from latebloom.layers.recurrence import Recurrence, RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class Elman(Recurrence):
    """An Elman network, from torch."""

    state_noise: ClassVar[bool] = True

    name: Literal["elman"] = "elman"
    bias: bool = True
    """Whether the layer has a bias."""

    def build(self, width: int) -> "ElmanLayer":
        return ElmanLayer(width, self.bias)

    def state_size(self, width: int) -> int:
        return width


class ElmanLayer(RecurrentLayer):
    """One Elman layer. The state is (1, B, D), as torch has it."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.rnn = nn.RNN(width, width, bias=bias, batch_first=True)

    def forward(self, x: Tensor, state: Tensor | None = None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if noise is None:
            return self.rnn(x, state)
        current = x.new_zeros(1, x.shape[0], x.shape[2]) if state is None else state
        outputs = []
        for t in range(x.shape[1]):  # noise enters between tokens, so torch's layer takes them one by one
            current = self.rnn(x[:, t : t + 1], current)[1] + noise[None, :, t]
            outputs.append(current[0])
        return torch.stack(outputs, dim=1), current
