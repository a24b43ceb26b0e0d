"""The M²RNN as an operation: the reference loop, and the same with few operations per token.

Shapes: B sequences, T tokens, H heads, K key size, V value size. The state of a head is a matrix (K, V).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.stacking import stackable

PIECE = 64
"""Tokens whose states are kept at once where no gradient is needed, so that memory does not grow with the length."""


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
    """Compute what `m2rnn_loop` computes, with one product of all sequences per head and token."""
    along = None if noise is None else F.normalize(key, dim=-1)
    by_head = [
        None if part is None else part.movedim(2, 0).transpose(1, 2)  # (H, T, B, ...)
        for part in (query, key, value, forget, along, noise)
    ]
    outputs, state = _in_pieces(*by_head, weight, state.transpose(0, 1))
    return outputs.permute(2, 1, 0, 3), state.transpose(0, 1)


def _single(*inputs: Any) -> tuple[Tensor, Tensor]:
    *by_head, weight, state = inputs
    outputs = []
    for start in range(0, by_head[0].shape[1], PIECE):
        piece = (None if part is None else part[:, start : start + PIECE] for part in by_head)
        read, state = _Piece.apply(*piece, weight, state)
        outputs.append(read)
    return torch.cat(outputs, dim=1), state


def _stacked(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Compute `_single` for S models as for one model that has all of their heads."""
    outputs = _single(*(None if part is None else part.flatten(0, 1) for part in inputs))
    outputs, state = (part.unflatten(0, (len(inputs[0]), -1)) for part in outputs)
    return outputs, state


_in_pieces = stackable(_single, _stacked)


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
