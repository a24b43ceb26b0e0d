"""Causal softmax attention as an operation.

Shapes: S stacked models, B sequences, H heads, T tokens, E features per head, D = H * E.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

from latebloom.layers.precision import product_precision
from latebloom.layers.stacking import stackable

MAX_TOKENS = 128
"""Up to this many tokens the scores of a sequence fit on the chip; the library's kernels are made for more."""
MAX_FEATURES = 64


def _library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if mixed.grad_fn is not None and "EfficientAttention" in mixed.grad_fn.name():
        backward_in_fixed_order(mixed.grad_fn)
    return mixed


def backward_in_fixed_order(node: Node) -> None:
    """Make the backward pass of a node deterministic.

    On a GPU the library's kernel for long sequences sums in a fixed order only in deterministic mode. The mode is
    enabled for this node only, because other operations do not support it.
    """
    before: list[int] = []

    def enable(grads: object) -> None:
        before.append(torch.get_deterministic_debug_mode())
        torch.set_deterministic_debug_mode("error")

    def restore(inputs: object, outputs: object) -> None:
        torch.set_deterministic_debug_mode(before.pop())

    node.register_prehook(enable)
    node.register_hook(restore)


def stacked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`causal_attention` for S models: attention has no weights, so (S, B, H, T, E) is S * B sequences to it."""
    models = q.shape[:2]
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    return (_Fused.apply(q, k, v) if _fits(q, q.shape[3]) else _library(q, k, v)).unflatten(0, models)


causal_attention = stackable(_library, stacked_attention)
"""Queries, keys and values (B, H, T, E) -> (B, H, T, E)."""


def split_heads(joint: Tensor, extra: Tensor | None, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values (B, H, T, E) from (B, T, 3D); `extra` (B, T, D) is added to the keys."""
    q, k, v = joint.chunk(3, dim=-1)
    k = k if extra is None else k + extra
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (q, k, v))
    return q, k, v


def _joint_library(joint: Tensor, extra: Tensor | None, heads: int) -> Tensor:
    return _library(*split_heads(joint, extra, heads)).transpose(1, 2).flatten(2)


def stacked_joint_attention(joint: Tensor, extra: Tensor | None, heads: int) -> Tensor:
    """`joint_attention` for S models: (S, B, T, 3D) -> (S, B, T, D)."""
    models = joint.shape[:2]
    joint, extra = joint.flatten(0, 1), None if extra is None else extra.flatten(0, 1)
    if _fits(joint.unflatten(2, (3 * heads, -1)).transpose(1, 2), joint.shape[2] // (3 * heads)):
        return _FusedJoint.apply(joint, extra, heads).unflatten(0, models)
    return _joint_library(joint, extra, heads).unflatten(0, models)


joint_attention = stackable(_joint_library, stacked_joint_attention)
"""The joint projection of queries, keys and values (B, T, 3D), what is added to the keys (B, T, D) or None, and the
number of heads -> (B, T, D)."""


def _fits(q: Tensor, features: int) -> bool:
    return q.is_cuda and q.dtype == torch.float32 and q.shape[2] <= MAX_TOKENS and features <= MAX_FEATURES


class _Fused(torch.autograd.Function):
    """Attention over short sequences; the backward pass computes the scores again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from latebloom.layers.attention import attention_triton

        ctx.precision = product_precision()
        ctx.save_for_backward(q, k, v)
        return attention_triton.forward(q, k, v, None, ctx.precision)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.attention import attention_triton

        q, k, v = ctx.saved_tensors
        return attention_triton.backward(q, k, v, None, grads[0], ctx.precision)


class _FusedJoint(torch.autograd.Function):
    """The same for a joint projection: its gradient is one tensor too, and nothing is copied."""

    @staticmethod
    def forward(ctx: Any, joint: Tensor, extra: Tensor | None, heads: int) -> Tensor:
        from latebloom.layers.attention import attention_triton

        extra = None if extra is None else extra.contiguous()
        ctx.precision, ctx.heads = product_precision(), heads
        ctx.save_for_backward(joint, extra)
        mixed = attention_triton.forward(*split_heads(joint, None, heads), extra, ctx.precision)
        return mixed.transpose(1, 2).flatten(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.attention import attention_triton

        joint, extra = ctx.saved_tensors
        d_mixed = grads[0].unflatten(2, (ctx.heads, -1)).transpose(1, 2)
        parts = split_heads(joint, None, ctx.heads)
        d_q, d_k, _ = attention_triton.backward(*parts, extra, d_mixed, ctx.precision)
        width = joint.shape[2] // 3
        d_joint = torch.as_strided(d_q, joint.shape, (*d_q.stride()[0:1], 3 * width, 1), d_q.storage_offset())
        d_extra = None if extra is None else d_k.transpose(1, 2).flatten(2)
        return d_joint, d_extra, None
