"""Torch's layers, by operations that also know how to compute many models at once."""

from torch import Tensor, nn

from latebloom.kernels.embedding import embed
from latebloom.kernels.linear import linear, mlp
from latebloom.kernels.norm import fork, layer_norm


class Embedding(nn.Embedding):
    """(...) -> (..., D)"""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)

    def forward(self, input: Tensor) -> Tensor:
        return embed(input, self.weight)


class Linear(nn.Linear):
    """(..., K) -> (..., M)"""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if self.bias is None else linear(input, self.weight, self.bias)


class Norm(nn.LayerNorm):
    """(..., D) -> (..., D)"""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias)

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x as it is, and normed: what a residual part begins with."""
        return fork(x, self.weight, self.bias)


class MLP(nn.Sequential):
    """(..., D) -> (..., D), with a GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(Linear(width, hidden), nn.GELU(), Linear(hidden, width))

    def forward(self, input: Tensor) -> Tensor:
        up, _, down = self
        return mlp(input, up.weight, up.bias, down.weight, down.bias)
