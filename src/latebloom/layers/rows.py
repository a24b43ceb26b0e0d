"""The rows of a tensor at chosen positions: where a model answers.

Shapes: S stacked models, B sequences, T tokens, D width, A positions.
"""

from typing import Any

import torch
from torch import Tensor

from latebloom.layers.stacking import stackable

FEW = 64
"""Up to this many positions, a token looks for itself among them; of more, the library's gather is faster."""


def gather_rows(positions: Tensor, x: Tensor) -> Tensor:
    """Return rows (..., A, D) of x (..., T, D)."""
    return x.gather(-2, positions[..., None].expand(*positions.shape, x.shape[-1]))


def _stacked(positions: Tensor, x: Tensor) -> Tensor:
    if x.is_cuda and x.dtype == torch.float32 and positions.shape[-1] <= FEW:
        return Rows.apply(positions, x)
    return gather_rows(positions, x)


def _single(positions: Tensor, x: Tensor) -> Tensor:
    return _stacked(positions[None], x[None]).squeeze(0) if x.is_cuda else gather_rows(positions, x)


rows_at = stackable(_single, _stacked)
"""positions (B, A), x (B, T, D) -> (B, A, D)."""


class Rows(torch.autograd.Function):
    """`gather_rows` of positions (S, B, A) and x (S, B, T, D).

    The gradient is written once, instead of zeros to which the slopes are added; those of a row that is chosen several
    times are added in the order of the positions.
    """

    @staticmethod
    def forward(ctx: Any, positions: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.tokens = x.shape[2]
        return gather_rows(positions, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers import rows_triton

        (positions,) = ctx.saved_tensors
        return None, rows_triton.backward(positions.contiguous(), grads[0].contiguous(), ctx.tokens)
