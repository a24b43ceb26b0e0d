"""Causal softmax attention as operations.

Shapes: S stacked models, B sequences, H heads, T tokens, E features a head, D = H * E.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

from latebloom.kernels.precision import product_precision
from latebloom.kernels.stacking import stackable

MAX_TOKENS = 128
"""Up to so many tokens a sequence's scores fit on the chip as a whole; the library's kernels are made for more."""
MAX_FEATURES = 64


def _library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if mixed.grad_fn is not None and "EfficientAttention" in mixed.grad_fn.name():
        add_in_fixed_order(mixed.grad_fn)
    return mixed


def add_in_fixed_order(node: Node) -> None:
    """Have a node's way back add in a fixed order. For long sequences on a GPU the library's kernel does so only where
    torch is told to, and told for good it would refuse other operations: so it is told for this one."""
    before: list[int] = []

    def tell(grads: object) -> None:
        before.append(torch.get_deterministic_debug_mode())
        torch.set_deterministic_debug_mode("error")

    def untell(inputs: object, outputs: object) -> None:
        torch.set_deterministic_debug_mode(before.pop())

    node.register_prehook(tell)
    node.register_hook(untell)


def stacked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention has no weights of its own, so models (S, B, H, T, E) are more sequences to it."""
    models = q.shape[:2]
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    return (_Fused.apply(q, k, v) if _fits(q, q.shape[3]) else _library(q, k, v)).unflatten(0, models)


causal_attention = stackable(_library, stacked_attention)
"""Queries, keys and values (B, H, T, E) -> what each token takes from those up to itself (B, H, T, E)."""


def _apart(together: Tensor, extra: Tensor | None, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, E) from (B, T, 3D) and what is added to the keys (B, T, D)."""
    q, k, v = together.chunk(3, dim=-1)
    k = k if extra is None else k + extra
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    return q, k, v


def _attend_library(together: Tensor, extra: Tensor | None, heads: int) -> Tensor:
    return _library(*_apart(together, extra, heads)).transpose(1, 2).flatten(2)


def stacked_attend(together: Tensor, extra: Tensor | None, heads: int) -> Tensor:
    """`attend` for S models: (S, B, T, 3D) -> (S, B, T, D)."""
    models = together.shape[:2]
    together, extra = together.flatten(0, 1), None if extra is None else extra.flatten(0, 1)
    if _fits(together.unflatten(2, (3 * heads, -1)).transpose(1, 2), together.shape[2] // (3 * heads)):
        return _FusedTogether.apply(together, extra, heads).unflatten(0, models)
    return _attend_library(together, extra, heads).unflatten(0, models)


attend = stackable(_attend_library, stacked_attend)
"""Queries, keys and values as one projection makes them (B, T, 3D), what is added to the keys (B, T, D) or None, and
the number of heads -> (B, T, D)."""


def _fits(q: Tensor, features: int) -> bool:
    return q.is_cuda and q.dtype == torch.float32 and q.shape[2] <= MAX_TOKENS and features <= MAX_FEATURES


class _Fused(torch.autograd.Function):
    """Short sequences: the scores are made again on the way back instead of being kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from latebloom.kernels import attention_triton

        ctx.precision = product_precision()
        ctx.save_for_backward(q, k, v)
        return attention_triton.forward(q, k, v, None, ctx.precision)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.kernels import attention_triton

        q, k, v = ctx.saved_tensors
        return attention_triton.backward(q, k, v, None, grads[0], ctx.precision)


class _FusedTogether(torch.autograd.Function):
    """The same where queries, keys and values lie together: so do their gradients, and nothing is copied."""

    @staticmethod
    def forward(ctx: Any, together: Tensor, extra: Tensor | None, heads: int) -> Tensor:
        from latebloom.kernels import attention_triton

        extra = None if extra is None else extra.contiguous()
        ctx.precision, ctx.heads = product_precision(), heads
        ctx.save_for_backward(together, extra)
        mixed = attention_triton.forward(*_apart(together, None, heads), extra, ctx.precision)
        return mixed.transpose(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.kernels import attention_triton

        together, extra = ctx.saved_tensors
        d_mixed = grads[0].unflatten(2, (ctx.heads, -1)).transpose(1, 2)
        parts = _apart(together, None, ctx.heads)
        d_q, d_k, _ = attention_triton.backward(*parts, extra, d_mixed, ctx.precision)
        width = together.shape[2] // 3
        d_together = torch.as_strided(d_q, together.shape, (*d_q.stride()[0:1], 3 * width, 1), d_q.storage_offset())
        d_extra = None if extra is None else d_k.transpose(1, 2).flatten(2)
        return d_together, d_extra, None
