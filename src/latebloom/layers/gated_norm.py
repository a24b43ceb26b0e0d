"""RMS norm with a gate as an operation: plain, and the fused kernel.

Shapes: S stacked models, B sequences, T tokens, G groups of channels, V channels of a group, H heads.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.memory_order import dense, rows
from latebloom.layers.precision import is_float32_on_gpu
from latebloom.layers.stacking import stackable

EPSILON = 1e-5
MAX_WIDTH = 2048
"""The fused kernel holds a group on the chip."""

Activation = Literal["silu", "sigmoid", "none"]


def uses_fused_kernel(x: Tensor) -> bool:
    """Return whether the fused kernel supports these inputs: float32 on a GPU, groups of at most `MAX_WIDTH`."""
    return is_float32_on_gpu(x) and x.shape[-1] <= MAX_WIDTH


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide x (..., C) by its root mean square, and scale it by a weight (C,)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def normalize_then_gate(x: Tensor, weight: Tensor, gate: Tensor, activation: Activation) -> Tensor:
    """Return rms_norm(x) * activation(gate) as (B, T, G V), for x (B, T, G, V), weight (V,) and gate (B, T, G V).

    With the activation `none` the gate is not used.
    """
    if uses_fused_kernel(x):
        return _fused(x, weight, None if activation == "none" else gate, None, None, activation, False).flatten(2)
    y = rms_norm(x, weight).flatten(2)
    if activation == "none":
        return y
    return y * (F.silu(gate) if activation == "silu" else gate.sigmoid())


def gate_then_normalize(
    x: Tensor, weight: Tensor, gate: Tensor, skip: Tensor | None = None, skipped: Tensor | None = None
) -> Tensor:
    """Return rms_norm(x * SiLU(gate)), for x (B, T, C), weight (C,) and gate (B, T, C).

    With skip (H,) and skipped (B, T, C), the H heads of `skipped` times their numbers are first added to x.
    """
    if uses_fused_kernel(x):
        return _fused(x[:, :, None], weight, gate, skip, skipped, "silu", True).flatten(2)
    if skip is not None and skipped is not None:
        x = x + (skip[:, None] * skipped.unflatten(-1, (skip.shape[0], -1))).flatten(2)
    return rms_norm(x * F.silu(gate), weight)


def _single(*inputs: Any) -> Tensor:
    """Compute one model as a stack of one."""
    return _Fused.apply(*(part[None] if isinstance(part, Tensor) else part for part in inputs))[0]


def _stacked(*inputs: Any) -> Tensor:
    return _Fused.apply(*inputs)


_fused = stackable(_single, _stacked)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skipped: Tensor | None, *how: Any
    ) -> Tensor:
        from latebloom.layers import gated_norm_triton

        ctx.shapes = [None if part is None else part.shape for part in (x, weight, gate, skip, skipped)]
        gate, skipped = (None if part is None else rows(part) for part in (gate, skipped))
        saved: list[Any] = [x.contiguous(), dense(weight), gate, None if skip is None else dense(skip), skipped]
        ctx.save_for_backward(*saved)
        ctx.how = (*how, EPSILON)
        return gated_norm_triton.forward(*[*saved, *ctx.how])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers import gated_norm_triton

        saved: Any = (*ctx.saved_tensors, grads[0].contiguous(), *ctx.how)
        found = gated_norm_triton.backward(*saved)
        shaped = (None if grad is None else grad.view(shape) for grad, shape in zip(found, ctx.shapes, strict=True))
        return *shaped, None, None
