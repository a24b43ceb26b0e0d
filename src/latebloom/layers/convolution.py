"""The short convolution as an operation: a sum over shifts, and the fused kernel.

Shapes: S stacked models, B sequences, T tokens, C channels, W tokens that a convolution sees.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.memory_order import dense, rows
from latebloom.layers.precision import is_float32_on_gpu
from latebloom.layers.stacking import stackable

MOST_SEEN = 8
"""The most tokens W whose inputs the fused kernel keeps in registers."""


def uses_fused_kernel(x: Tensor, size: int) -> bool:
    """Return whether the fused kernel supports these inputs: float32 on a GPU, and 2 to `MOST_SEEN` tokens seen."""
    return is_float32_on_gpu(x) and 2 <= size <= MOST_SEEN


def short_convolution(x: Tensor, before: Tensor | None, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return SiLU(convolution of x (B, T, C)), and the last W - 1 inputs (B, W - 1, C).

    `before` are the W - 1 inputs before the first token, or None for zeros; weight (W, C), bias (C,) or None.
    """
    if uses_fused_kernel(x, len(weight)):
        return _fused(x, before, weight, bias), _last(x, before, len(weight) - 1)
    return _by_shifts(x, before, weight, bias)


def _last(x: Tensor, before: Tensor | None, history: int) -> Tensor:
    if x.shape[1] >= history:
        return x[:, x.shape[1] - history :]
    seen = F.pad(x, (0, 0, history, 0)) if before is None else torch.cat([before, x], dim=1)
    return seen[:, x.shape[1] :]


def _by_shifts(x: Tensor, before: Tensor | None, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute `short_convolution` with the library: the specification."""
    tokens, size = x.shape[1], len(weight)
    seen = F.pad(x, (0, 0, size - 1, 0)) if before is None else torch.cat([before, x], dim=1)
    # A sum over shifts has a batching rule for stacked models, and is faster than the library's convolution.
    y = seen[:, :tokens] * weight[0]
    for i in range(1, size):
        y = y + seen[:, i : i + tokens] * weight[i]
    return F.silu(y if bias is None else y + bias), seen[:, tokens:]


def _single(*inputs: Any) -> Tensor:
    """Compute one model as a stack of one."""
    return _Fused.apply(*(None if part is None else part[None] for part in inputs))[0]


def _stacked(*inputs: Any) -> Tensor:
    return _Fused.apply(*inputs)


_fused = stackable(_single, _stacked)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        from latebloom.layers import convolution_triton

        models, batch, tokens, _ = x.shape
        ctx.shape, inputs = (models, batch, tokens), rows(x)
        before = None if before is None else before.contiguous()
        weight, bias = dense(weight), None if bias is None else dense(bias)
        ctx.save_for_backward(inputs, before, weight, bias)
        return convolution_triton.forward(inputs, before, weight, bias, ctx.shape).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers import convolution_triton

        x, before, weight, bias = ctx.saved_tensors
        d_y = grads[0].contiguous()
        d_x, *others = convolution_triton.backward(x, before, weight, bias, d_y, ctx.shape)
        return d_x.view(d_y.shape), *others
