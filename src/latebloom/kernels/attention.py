"""Causal softmax attention as an operation.

Shapes: S stacked models, B sequences, H heads, T tokens, E features a head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.kernels.precision import product_precision
from latebloom.kernels.stacking import stackable

MAX_TOKENS = 128
"""Up to so many tokens a sequence's scores fit on the chip as a whole; the library's kernels are made for more."""
MAX_FEATURES = 64


def _library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def stacked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention has no weights of its own, so models (S, B, H, T, E) are more sequences to it."""
    models = q.shape[:2]
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    fused = q.is_cuda and q.dtype == torch.float32 and q.shape[2] <= MAX_TOKENS and q.shape[3] <= MAX_FEATURES
    return (_Fused.apply(q, k, v) if fused else _library(q, k, v)).unflatten(0, models)


causal_attention = stackable(_library, stacked_attention)
"""Queries, keys and values (B, H, T, E) -> what each token takes from those up to itself (B, H, T, E)."""


class _Fused(torch.autograd.Function):
    """Short sequences: the scores are made again on the way back instead of being kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from latebloom.kernels import attention_triton

        ctx.precision = product_precision()
        ctx.save_for_backward(q, k, v)
        return attention_triton.forward(q, k, v, ctx.precision)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.kernels import attention_triton

        q, k, v = ctx.saved_tensors
        return attention_triton.backward(q, k, v, grads[0], ctx.precision)
