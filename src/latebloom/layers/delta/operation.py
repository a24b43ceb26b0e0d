"""The delta rule with decay, which all linear recurrences with a matrix state are cases of.

The state S of a head maps keys to values. One step forgets, erases what is stored under the key, and writes:

    S = diag(decay) S;    S = S + k (write - beta S^T k)^T;    output = S^T q

Without `beta` nothing is erased, which is linear attention with decay, or Mamba-2. `delta_rule_loop` is the
specification. `delta_rule` computes the same in chunks of tokens: within a chunk the writes are the solution of one
triangular system, and only the state passes from chunk to chunk. On a GPU a fused kernel walks through the tokens.

Shapes: B sequences, H heads, T tokens, C tokens of a chunk, K key size, V value size.
"""

from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.delta.form import Decay, Form
from latebloom.layers.delta.fused import fused_rule, uses_fused_kernel

CHUNK = 32
"""Tokens of a chunk. The work within a chunk grows with its square, the number of steps in sequence shrinks with it."""

Outcome = tuple[Tensor, Tensor]
"""Outputs (B, H, T, V), and the state (B, H, K, V) after the last token."""


def delta_rule_loop(
    q: Tensor, k: Tensor, write: Tensor, beta: Tensor | None, log_decay: Tensor | None, state: Tensor | None
) -> Outcome:
    """Compute the delta rule token by token: the specification of `delta_rule`, which has the same arguments."""
    outputs = []
    shape = (*write.shape[:-2], k.shape[-1], write.shape[-1])
    state = write.new_zeros(shape) if state is None else state
    for t in range(write.shape[-2]):
        if log_decay is not None:
            state = log_decay[..., t, :, None].exp() * state
        new = write[..., t, :]
        if beta is not None:
            stored = (k[..., t, :, None] * state).sum(dim=-2)
            new = new - beta[..., t, None] * stored
        state = state + k[..., t, :, None] * new[..., None, :]
        outputs.append((q[..., t, :, None] * state).sum(dim=-2))
    return torch.stack(outputs, dim=-2), state


def delta_rule(
    q: Tensor, k: Tensor, write: Tensor, beta: Tensor | None, log_decay: Tensor | None, state: Tensor | None
) -> Outcome:
    """Compute the delta rule in chunks, or with the fused kernel on a GPU.

    q and k (B, H, T, K); H may be 1 if the heads share them. `write` (B, H, T, V). `beta` (B, H, T), or None to erase
    nothing. `log_decay` (B, H, T, 1) of a head or (B, H, T, K) of each key channel, 0 or less, or None for no decay.
    `state` (B, H, K, V), or None for zeros.
    """
    if write.dim() == 4 and uses_fused_kernel(k, k.shape[-1]):
        channels = log_decay is not None and log_decay.shape[-1] > 1
        decay = log_decay if log_decay is None or channels else log_decay[..., 0]
        return fused_by_token(q, k, write, beta, decay, state, "none" if decay is None else "log")
    return _in_chunks(q, k, write, beta, log_decay, state)


def fused_by_token(
    q: Tensor, k: Tensor, write: Tensor, beta: Tensor | None, decay: Tensor | None, state: Tensor | None, kind: Decay
) -> Outcome:
    """Compute the delta rule with the fused kernel; decay (B, H, T) of a head or (B, H, T, K) of each key channel."""
    heads, value_size, key_size = write.shape[-3], write.shape[-1], k.shape[-1]
    channels = decay is not None and decay.dim() == 4
    form = Form(heads=heads, key_size=key_size, value_size=value_size, decay=kind, channels=channels)
    by_token = [
        None if part is None else part.transpose(1, 2).flatten(2) for part in (q, k, write, beta, decay)
    ]  # (B, T, ...)
    outputs, last = fused_rule(form, *by_token, None, None, None, state)
    return outputs.transpose(1, 2), last


def _in_chunks(
    q: Tensor, k: Tensor, write: Tensor, beta: Tensor | None, log_decay: Tensor | None, state: Tensor | None
) -> Outcome:
    outputs: list[Tensor] = []
    # Pieces that are split off share one gradient; slices would each have one of the size of the whole.
    queries, keys, writes = (part.split(CHUNK, dim=-2) for part in (q, k, write))
    betas = repeat(None) if beta is None else beta.split(CHUNK, dim=-1)
    decays = repeat(None) if log_decay is None else log_decay.split(CHUNK, dim=-2)
    for parts in zip(queries, keys, writes, betas, decays, strict=False):  # `repeat` has no end
        out, state = _chunk(*parts, state)
        outputs.append(out)
    assert state is not None, "a sequence has at least one token"
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2), state


def _chunk(
    q: Tensor, k: Tensor, write: Tensor, beta: Tensor | None, log_decay: Tensor | None, state: Tensor | None
) -> Outcome:
    """Compute the delta rule for the tokens of one chunk at once."""
    rows = q[..., None, :, :] if beta is None else torch.stack([k, q], dim=-3)
    *by_key, by_query = decayed_products(rows, k[..., None, :, :], log_decay).unbind(-3)
    held_for_query = None  # what the state before the chunk holds for the queries
    if state is not None:
        faded = rows if log_decay is None else rows * log_decay.cumsum(-2).exp()[..., None, :, :]
        *held_for_key, held_for_query = (faded @ state[..., None, :, :]).unbind(-3)
        write = write if beta is None else write - beta[..., None] * held_for_key[0]
    if beta is not None:
        # Row i: what token i erases of the writes of tokens j < i.
        write = torch.linalg.solve_triangular(beta[..., None] * by_key[0], write, upper=False, unitriangular=True)
    outputs = by_query @ write
    if held_for_query is not None:
        outputs = outputs + held_for_query
    new = (k if log_decay is None else k * decay_after(log_decay)).mT @ write
    if state is not None:
        new = new + (state if log_decay is None else log_decay.sum(-2).exp()[..., None] * state)
    return outputs, new


def decayed_products(left: Tensor, right: Tensor, log_decay: Tensor | None) -> Tensor:
    """Return the products of rows i of `left` with rows j <= i of `right`, decayed by the tokens j+1 to i; else 0.

    left (B, H, N, C, K), right (B, H, 1, C, K), log_decay (B, H, C, 1 or K) -> (B, H, N, C, C). Every exponent is a
    sum of log decays and never a difference of such sums, so that nothing overflows and no digits cancel.
    """
    if log_decay is None:
        return (left @ right.mT).tril()
    if log_decay.shape[-1] == 1:
        return (left @ right.mT) * decay_between(log_decay[..., 0])[..., None, :, :]
    return _channel_products(left, right, log_decay[..., None, :, :])


def decay_between(log_decay: Tensor) -> Tensor:
    """Return the decay (..., C, C) by the tokens j+1 to i in row i and column j, and 0 for j > i."""
    tokens = log_decay.shape[-1]
    ones = torch.ones(tokens, tokens, dtype=torch.bool, device=log_decay.device)
    sums = log_decay[..., None].expand(*log_decay.shape, tokens).masked_fill(ones.triu(), 0.0).cumsum(-2)
    return sums.masked_fill(ones.triu(1), float("-inf")).exp()


def decay_after(log_decay: Tensor) -> Tensor:
    """Return the decay (..., C, K) by the tokens after each of C tokens."""
    return F.pad(log_decay[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()


def _channel_products(left: Tensor, right: Tensor, log_decay: Tensor) -> Tensor:
    """Compute `decayed_products` for a decay per channel, from blocks of one token to blocks of twice the size.

    Between a token of the second half of a block and one of the first half, the decay is that of the second half up to
    the one times that of the first half after the other, so the products of the halves are a plain matrix product.
    """
    tokens, size = right.shape[-2], 1
    padding = (0, 0, 0, (1 << (tokens - 1).bit_length()) - tokens)
    left, right, log_decay = (F.pad(part, padding) for part in (left, right, log_decay))
    blocks = (left * right).sum(-1)[..., None, None]  # (B, H, N, blocks, size, size)
    while size < tokens:
        before, up_to = (part.unflatten(-2, (-1, 2, size)).unbind(-3) for part in (right, left))
        decays = log_decay.unflatten(-2, (-1, 2, size)).unbind(-3)
        early, late = before[0] * decay_after(decays[0]), up_to[1] * decays[1].cumsum(-2).exp()
        first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
        bottom = torch.cat([late @ early.mT, second], dim=-1)
        blocks = torch.cat([F.pad(first, (0, size)), bottom], dim=-2)
        size *= 2
    return blocks[..., 0, :tokens, :tokens]
