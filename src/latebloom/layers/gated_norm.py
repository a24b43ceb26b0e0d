"""RMS norm with a gate as an operation: plain, and the fused kernel.

Shapes: S stacked models, B sequences, T tokens, G groups of channels, V channels of a group.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.stacking import stackable

EPSILON = 1e-5
MAX_WIDTH = 2048
"""The fused kernel holds a group on the chip."""

Activation = Literal["silu", "sigmoid", "none"]


def uses_fused_kernel(x: Tensor) -> bool:
    """Return whether the fused kernel supports these inputs: float32 on a GPU, groups of at most `MAX_WIDTH`."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[-1] <= MAX_WIDTH


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide x (..., C) by its root mean square, and scale it by a weight (C,)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def normalize_then_gate(x: Tensor, weight: Tensor, gate: Tensor, activation: Activation) -> Tensor:
    """Return rms_norm(x) * activation(gate) as (B, T, G V), for x (B, T, G, V), weight (V,) and gate (B, T, G V).

    With the activation `none` the gate is not used.
    """
    if uses_fused_kernel(x):
        return _fused(x, weight, None if activation == "none" else gate, activation, False).flatten(2)
    y = rms_norm(x, weight).flatten(2)
    if activation == "none":
        return y
    return y * (F.silu(gate) if activation == "silu" else gate.sigmoid())


def gate_then_normalize(x: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
    """Return rms_norm(x * SiLU(gate)), for x (B, T, C), weight (C,) and gate (B, T, C)."""
    if uses_fused_kernel(x):
        return _fused(x[:, :, None], weight, gate, "silu", True).flatten(2)
    return rms_norm(x * F.silu(gate), weight)


def _single(x: Tensor, weight: Tensor, gate: Tensor | None, *how: Any) -> Tensor:
    """Compute one model as a stack of one."""
    return _Fused.apply(x[None], weight[None], None if gate is None else gate[None], *how)[0]


def _stacked(*inputs: Any) -> Tensor:
    return _Fused.apply(*inputs)


_fused = stackable(_single, _stacked)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, gates_first: bool) -> Tensor:
        from latebloom.layers import gated_norm_triton

        x = x.contiguous()
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        rows = gate
        if gate is not None:
            rows = gate.flatten(0, -2)
            rows = rows if rows.stride(1) == 1 else rows.contiguous()
        ctx.save_for_backward(x, weight, rows)
        ctx.how, ctx.gates = (activation, gates_first, EPSILON), None if gate is None else gate.shape
        return gated_norm_triton.forward(x, weight, rows, *ctx.how)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers import gated_norm_triton

        x, weight, rows = ctx.saved_tensors
        d_x, d_weight, d_gate = gated_norm_triton.backward(x, weight, rows, grads[0].contiguous(), *ctx.how)
        return d_x, d_weight, None if d_gate is None else d_gate.view(ctx.gates), None, None
