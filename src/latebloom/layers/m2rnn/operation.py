"""The M²RNN as an operation: the reference loop, the same with few operations per token, and the fused kernel.

Shapes: S stacked models, B sequences, T tokens, H heads, K key size, V value size. The state of a head is a matrix
(K, V).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.precision import is_float32_on_gpu, product_precision
from latebloom.layers.stacking import stackable

PIECE = 64
"""Tokens whose states are kept at once where no gradient is needed, so that memory does not grow with the length."""
MAX_VALUE = 64
"""The largest value size of the fused kernel: the weight of a larger head does not fit on the chip."""
MAX_STATE = 1024
"""The most elements that the state of a head may have in the fused kernel, its sizes rounded up to powers of two."""


def m2rnn_loop(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor,
    state: Tensor,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute an M²RNN token by token, the specification of `m2rnn`; return outputs (B, T, H, V) and the last state.

    Queries and keys (B, T, H, K), values (B, T, H, V), forget gates (B, T, H) between 0 and 1, weight (H, V, V), state
    (B, H, K, V). Noise (B, T, H, V) is written into the state along the key, whose length does not scale it.
    """
    outputs = []
    for t in range(query.shape[1]):
        kept = forget[:, t, :, None, None]
        candidate = torch.tanh(state @ weight + key[:, t, :, :, None] * value[:, t, :, None, :])
        state = kept * state + (1 - kept) * candidate
        if noise is not None:
            state = state + F.normalize(key[:, t], dim=-1)[..., None] * noise[:, t, :, None, :]
        outputs.append((query[:, t, :, None, :] @ state).squeeze(-2))
    return torch.stack(outputs, dim=1), state


def m2rnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    forget: Tensor,
    weight: Tensor,
    state: Tensor,
    noise: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what `m2rnn_loop` computes, with one product per token on a CPU, and the fused kernel on a GPU."""
    return _m2rnn(query, key, value, forget, weight, state, noise)


def _single(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute one model as a stack of one."""
    outputs, state = _stacked(*(None if part is None else part.unsqueeze(0) for part in inputs))
    return outputs.squeeze(0), state.squeeze(0)


def _stacked(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute `m2rnn` for S models: every tensor has an axis S in front."""
    fused = uses_fused_kernel(inputs[0], inputs[2].shape[-1])
    return fused_m2rnn(*inputs) if fused else _by_token(*inputs)


_m2rnn = stackable(_single, _stacked)


def uses_fused_kernel(query: Tensor, value_size: int) -> bool:
    """Return whether the fused kernel supports the inputs: float32 on a GPU, and sizes within the limits."""
    keys, values = (1 << (size - 1).bit_length() for size in (query.shape[-1], max(16, value_size)))
    return is_float32_on_gpu(query) and values <= MAX_VALUE and keys * values <= MAX_STATE


def _by_token(
    query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight: Tensor, state: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute S models as one that has all of their heads, with one product per token."""
    models = len(query)
    along = None if noise is None else F.normalize(key, dim=-1)
    by_head = [
        None if part is None else part.movedim(3, 1).transpose(2, 3).flatten(0, 1)  # (S H, T, B, ...)
        for part in (query, key, value, forget, along, noise)
    ]
    weight, state = weight.flatten(0, 1), state.transpose(1, 2).flatten(0, 1)
    outputs = []
    for start in range(0, query.shape[2], PIECE):
        piece = (None if part is None else part[:, start : start + PIECE] for part in by_head)
        read, state = _Piece.apply(*piece, weight, state)
        outputs.append(read)
    read, state = (part.unflatten(0, (models, -1)) for part in (torch.cat(outputs, dim=1), state))
    return read.permute(0, 3, 2, 1, 4), state.transpose(1, 2)


def fused_m2rnn(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute the M²RNN of S models with the Triton kernels: one launch for all models and tokens per direction."""
    # States are kept only where gradients are enabled, which cannot be seen from inside the function.
    return _Fused.apply(torch.is_grad_enabled(), *inputs)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tracked: bool, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
        from latebloom.layers.m2rnn import m2rnn_triton

        forget, weight, state, noise = rest
        query, key, value = (_by_token_stride(part) for part in (query, key, value))
        forget, state = forget.contiguous(), state.contiguous()
        weight = weight if weight[0].is_contiguous() else weight.contiguous()
        noise = None if noise is None else noise.contiguous()
        ctx.precision = product_precision()
        keep = tracked and any(ctx.needs_input_grad)
        outputs, last, states = m2rnn_triton.forward(
            query, key, value, forget, weight, state, noise, ctx.precision, keep
        )
        if keep:
            ctx.save_for_backward(query, key, value, forget, weight, states, noise)
        return outputs, last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.m2rnn import m2rnn_triton

        d_outputs, d_last = (grad.contiguous() for grad in grads)
        query, key, value, forget, weight, states, noise = ctx.saved_tensors
        d_inputs = m2rnn_triton.backward(
            d_outputs, d_last, query, key, value, forget, weight, states, noise, ctx.precision
        )
        return None, *d_inputs, None


def _by_token_stride(x: Tensor) -> Tensor:
    """Return x (S, B, T, H, N) as it is if it is a slice of the last axis of a dense tensor, otherwise a dense copy."""
    _, batch, tokens, _, size = x.shape
    step = x.stride(2)
    return x if x.stride() == (batch * tokens * step, tokens * step, step, size, 1) else x.contiguous()


class _Piece(torch.autograd.Function):
    """A few tokens of all heads, (H, T, B, ...); gradients that need no loop are computed for all tokens at once."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, forget: Tensor, *rest: Any) -> Any:
        along, noise, weight, state = rest
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()  # so that products are, too
        heads, tokens, batch, key_size = key.shape
        states = state.new_empty(heads, tokens + 1, batch, key_size, value.shape[-1])
        states[:, 0] = state
        candidates = key[..., None] * value[..., None, :]
        disturbed = None if noise is None or along is None else along[..., None] * noise[..., None, :]
        kept = forget[..., None, None]
        for t in range(tokens):
            candidate = candidates[:, t]
            candidate.flatten(1, 2).baddbmm_(states[:, t].flatten(1, 2), weight)
            torch.lerp(candidate.tanh_(), states[:, t], kept[:, t], out=states[:, t + 1])
            if disturbed is not None:
                states[:, t + 1] += disturbed[:, t]
        ctx.save_for_backward(query, key, value, forget, noise, weight, states, candidates)
        return (query[..., None] * states[:, 1:]).sum(-2), states[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        query, key, value, forget, noise, weight, states, candidates = ctx.saved_tensors
        d_outputs, d_last = grads[0].contiguous(), grads[1]
        kept = forget[..., None, None]
        slope = (1 - kept) * (1 - candidates.square())
        d_states = query[..., None] * d_outputs[..., None, :]
        d_moved = torch.empty_like(d_states)  # the gradient inside the tanh
        back = d_last
        for t in reversed(range(d_states.shape[1])):
            d_state = d_states[:, t].add_(back)
            torch.mul(d_state, slope[:, t], out=d_moved[:, t])
            back = torch.baddbmm((kept[:, t] * d_state).flatten(1, 2), d_moved[:, t].flatten(1, 2), weight.mT)
            back = back.view_as(d_state)
        return (
            (states[:, 1:] * d_outputs[..., None, :]).sum(-1),
            (d_moved * value[..., None, :]).sum(-1),
            (d_moved * key[..., None]).sum(-2),
            (d_states * (states[:, :-1] - candidates)).sum((-2, -1)),
            None if noise is None else (d_states * noise[..., None, :]).sum(-1),
            None,
            torch.bmm(states[:, :-1].flatten(1, 3).mT, d_moved.flatten(1, 3)),
            back,
        )
