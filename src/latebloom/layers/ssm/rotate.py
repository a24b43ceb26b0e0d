"""The rotation of pairs of neighbouring channels as an operation: plain, and the fused kernel."""

from typing import Any

import torch
from torch import Tensor

from latebloom.layers.stacking import stackable


def uses_fused_kernel(x: Tensor) -> bool:
    """Return whether the fused kernel supports these inputs: float32 on a GPU."""
    return x.is_cuda and x.dtype == torch.float32


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the first R pairs of neighbouring channels of x (..., N) by angles (..., R)."""
    if uses_fused_kernel(x) and x.dim() == angle.dim():
        return _fused(x, angle)
    pairs = angle.shape[-1]
    even, odd = x[..., : 2 * pairs].unflatten(-1, (pairs, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., 2 * pairs :].expand(*turned.shape[:-1], -1)], dim=-1)


def _apply(x: Tensor, angle: Tensor) -> Tensor:
    """Compute the rotation of one model or of stacked models."""
    leading = torch.broadcast_shapes(x.shape[:-1], angle.shape[:-1])
    return _Fused.apply(x.expand(*leading, -1), angle.expand(*leading, -1))


_fused = stackable(_apply, _apply)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, angle: Tensor) -> Tensor:
        from latebloom.layers.ssm import rotate_triton

        # The heads of a token side by side in memory, as the recurrence takes them.
        x, angle = (_by_token(part) for part in (x, angle))
        ctx.save_for_backward(x, angle)
        return _by_token_back(rotate_triton.forward(x, angle))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.ssm import rotate_triton

        x, angle = ctx.saved_tensors
        found = rotate_triton.backward(x, angle, _by_token(grads[0]))
        return tuple(_by_token_back(part) for part in found)


def _by_token(x: Tensor) -> Tensor:
    """(..., H, T, size) -> (..., T, H, size), contiguous."""
    return x.transpose(-3, -2).contiguous() if x.dim() > 2 else x.contiguous()


def _by_token_back(x: Tensor) -> Tensor:
    return x.transpose(-3, -2) if x.dim() > 2 else x
