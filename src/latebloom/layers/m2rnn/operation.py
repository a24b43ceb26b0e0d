"""The M²RNN as an operation: the reference loop, and the same with few operations per token.

Shapes: B sequences, T tokens, H heads, K key size, V value size. The state of a head is a matrix (K, V).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PIECE = 64
"""Tokens whose states are kept at once where no gradient is needed."""


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
    """Compute what `m2rnn_loop` computes, with one product of all sequences per head and token.

    The states of up to `PIECE` tokens are read at once, so that memory without gradients does not grow with T.
    """
    outputs = []
    state = state.transpose(0, 1)
    for start in range(0, query.shape[1], PIECE):
        piece = slice(start, start + PIECE)
        q, k, v = (part[:, piece].permute(1, 2, 0, 3) for part in (query, key, value))  # (T, H, B, K or V)
        written = (k[..., None] * v[..., None, :]).unbind()
        kept = forget[:, piece].permute(1, 2, 0)[..., None, None].unbind()
        disturbed = None
        if noise is not None:
            disturbed = F.normalize(k, dim=-1)[..., None] * noise[:, piece].permute(1, 2, 0, 3)[..., None, :]
        states = []
        for t in range(len(written)):
            moved = torch.baddbmm(written[t].flatten(1, 2), state.flatten(1, 2), weight).view_as(state)
            state = torch.lerp(moved.tanh(), state, kept[t])
            if disturbed is not None:
                state = state + disturbed[t]
            states.append(state)
        outputs.append((q[..., None, :] @ torch.stack(states)).squeeze(-2))
    return torch.cat(outputs).permute(2, 0, 1, 3), state.transpose(0, 1)
