"""The fused delta rule as a differentiable operation: one launch for all models, heads and tokens in each direction.

Shapes as in `form`.
"""

from typing import Any

import torch
from torch import Tensor

from latebloom.layers.delta.form import Form, Terms
from latebloom.layers.memory_order import dense, rows
from latebloom.layers.precision import is_float32_on_gpu
from latebloom.layers.stacking import stackable

MAX_KEY = 128
"""For larger keys, a column of the state does not fit into registers."""


def uses_fused_kernel(k: Tensor, key_size: int) -> bool:
    """Return whether the fused kernel supports these keys: float32 on a GPU, of at most `MAX_KEY` channels."""
    return is_float32_on_gpu(k) and key_size <= MAX_KEY


def fused_rule(form: Form, *terms: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return outputs (B, T, H, V) and the last state (B, H, K, V) of the terms of one model, or of stacked models.

    The terms are queries, keys and values (B, T, ...), with `form.raw` all three side by side in the place of the
    first; beta, decay and noise (B, T, ...), rate and bias, and the state (B, H, K, V).
    """
    first = next(term for term in terms if term is not None)
    assert first.shape[1] > 0, "a sequence has at least one token"
    return _fused(*terms, form, torch.is_grad_enabled())


def _stacked(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _Fused.apply(*inputs)


def _single(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute one model as a stack of one."""
    outputs, last = _Fused.apply(*(part[None] if isinstance(part, Tensor) else part for part in inputs))
    return outputs[0], last[0]


_fused = stackable(_single, _stacked)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        from latebloom.layers.delta import delta_triton

        *terms, form, keep = inputs
        *parts, noise, rate, bias, state = terms
        ctx.form, ctx.shape, ctx.shapes = form, terms[0].shape[:3], [None if x is None else x.shape for x in terms]
        inputs_of_tokens = (None if x is None else rows(x) for x in parts)
        rate, bias = (None if x is None else dense(x) for x in (rate, bias))
        noise, state = (None if x is None else x.contiguous() for x in (noise, state))
        saved = (*inputs_of_tokens, noise, rate, bias, state)
        keep = keep and any(ctx.needs_input_grad)
        outputs, last, kept = delta_triton.forward(form, _terms(form, saved), ctx.shape, keep)
        if keep:
            ctx.save_for_backward(*saved, kept)
        ctx.set_materialize_grads(False)  # in training nobody asks for the last state
        return outputs.view(*ctx.shape, form.heads, form.value_size), last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        from latebloom.layers.delta import delta_triton

        form, (*saved, kept) = ctx.form, ctx.saved_tensors
        d_outputs, d_last = (None if grad is None else grad.contiguous() for grad in grads)
        if d_outputs is None:
            d_outputs = kept.new_zeros(*ctx.shape, form.heads, form.value_size)
        terms = _terms(form, saved)
        found = delta_triton.backward(form, terms, ctx.shape, kept, d_outputs, d_last)
        shaped = (_like(grad, shape, form.heads) for grad, shape in zip(found, ctx.shapes, strict=True))
        return *shaped, None, None


def _terms(form: Form, saved: Any) -> Terms:
    if not form.raw:
        return Terms(*saved)
    together, _, _, *rest = saved
    keys = form.heads * form.key_size
    q, k, v = together.split([keys, form.steps * keys, form.steps * form.heads * form.value_size], dim=-1)
    return Terms(q, k, v, *rest)


def _like(grad: Tensor | None, shape: torch.Size | None, heads: int) -> Tensor | None:
    """Return a gradient in the shape of its term; that of a key which the heads share is a sum over the heads."""
    if grad is None or shape is None:
        return None
    return grad.view(shape) if grad.numel() == shape.numel() else grad.view(*shape[:-1], heads, -1).sum(-2)
