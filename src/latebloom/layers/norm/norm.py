"""Layer norm: the operation and the module.

Shapes: S stacked models, D width; dots stand for any axes in between.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.layers.stacking import stackable

EPSILON = 1e-5


def _library(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x, F.layer_norm(x, weight.shape, weight, bias, EPSILON)


def stacked_fork(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x (S, ..., D), weight and bias (S, D)."""
    if x.is_cuda and x.dtype == torch.float32:
        return _Fused.apply(x, weight, bias)
    between = (x.shape[0], *(1 for _ in x.shape[1:-1]), x.shape[-1])
    return x, F.layer_norm(x, x.shape[-1:], None, None, EPSILON) * weight.view(between) + bias.view(between)


fork = stackable(_library, stacked_fork)
"""x (..., D), weight (D,), bias (D,) -> x itself and x normalized: the start of a residual branch. The backward pass
adds both gradients in one kernel."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (..., D), weight (D,), bias (D,) -> (..., D)."""
    return fork(x, weight, bias)[1]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        from latebloom.layers.norm import norm_triton

        dense = x.contiguous()
        ctx.save_for_backward(dense, weight)
        ctx.set_materialize_grads(False)  # where x itself is not used, it has no gradient
        return x.view_as(x), norm_triton.forward(dense, weight, bias, EPSILON)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        from latebloom.layers.norm import norm_triton

        x, weight = ctx.saved_tensors
        past, through = (None if grad is None else grad.contiguous() for grad in grads)
        return norm_triton.backward(x, weight, torch.zeros_like(x) if through is None else through, past, EPSILON)


class Norm(nn.LayerNorm):
    """Layer norm. (..., D) -> (..., D)"""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias)

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x itself and x normalized."""
        return fork(x, self.weight, self.bias)
