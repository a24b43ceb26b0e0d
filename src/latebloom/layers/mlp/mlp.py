"""Linear map and MLP: the operations and the modules.

Shapes: S stacked models, N rows of a model, D width, K inputs, M outputs, H hidden units.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.layers.precision import product_precision
from latebloom.layers.stacking import stackable

MAX_WIDTH = 64
"""Up to this width the fused MLP is faster: it leaves room on the chip for several programs."""


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (S, ..., K), weight (S, M, K), bias (S, M) -> (S, ..., M)."""
    rows = x.flatten(1, -2)
    if x.is_cuda and x.dtype == torch.float32:
        y = _FusedLinear.apply(rows, weight, bias)
    else:
        y = torch.baddbmm(bias[:, None], rows, weight.mT)
    return y.view(*x.shape[:-1], weight.shape[1])


linear = stackable(F.linear, stacked_linear)
"""x (..., K), weight (M, K), bias (M,) -> (..., M)."""


def _mlp_library(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)


def stacked_mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    """x (S, ..., D), up (S, H, D), down (S, D, H), biases (S, H) and (S, D) -> (S, ..., D)."""
    width, hidden = x.shape[-1], up.shape[1]
    fused = x.is_cuda and x.dtype == torch.float32 and width <= MAX_WIDTH and hidden % 64 == 0
    if fused:
        return _FusedMLP.apply(x.flatten(1, -2), up, up_bias, down, down_bias).view_as(x)
    return stacked_linear(F.gelu(stacked_linear(x, up, up_bias)), down, down_bias)


mlp = stackable(_mlp_library, stacked_mlp)
"""x (..., D), up (H, D), its bias (H,), down (D, H), its bias (D,) -> (..., D), with a GELU between them."""


class _FusedLinear(torch.autograd.Function):
    """The bias is added while the product is still on the chip."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from latebloom.layers.mlp import linear_triton

        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        return linear_triton.forward(x, weight, bias, product_precision())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        slope = grads[0].contiguous()
        return torch.bmm(slope, weight), torch.bmm(slope.mT, x), slope.sum(1)


class _FusedMLP(torch.autograd.Function):
    """The hidden units never leave the chip; the backward pass computes them again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        from latebloom.layers.mlp import mlp_triton

        x = x.contiguous()
        ctx.precision = product_precision()
        ctx.save_for_backward(x, up, up_bias, down)
        return mlp_triton.forward(x, up, up_bias, down, down_bias, ctx.precision)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.mlp import mlp_triton

        x, up, up_bias, down = ctx.saved_tensors
        return mlp_triton.backward(x, up, up_bias, down, grads[0].contiguous(), ctx.precision)


class Linear(nn.Linear):
    """Linear map. (..., K) -> (..., M)"""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class MLP(nn.Sequential):
    """Two linear maps with a GELU between them. (..., D) -> (..., D)"""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(Linear(width, hidden), nn.GELU(), Linear(hidden, width))

    def forward(self, input: Tensor) -> Tensor:
        up, _, down = self
        return mlp(input, up.weight, up.bias, down.weight, down.bias)
