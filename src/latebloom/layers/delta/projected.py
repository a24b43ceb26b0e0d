"""The delta rule of a layer, from the projections of its inputs to what its heads read.

    q and k have length 1;  beta = sigmoid(beta), or twice that;  decay = exp(-exp(rate) softplus(decay + bias))
    S = decay S;  S = S + k (beta (v - S^T k) + noise)^T;  y = S^T q / sqrt(K)

`_by_operations` is the specification, and the fused kernel computes the same in one launch.

Shapes: B sequences, T tokens, N delta steps per token, H heads, K key size, V value size.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.delta.form import Form
from latebloom.layers.delta.fused import fused_rule, uses_fused_kernel
from latebloom.layers.delta.operation import delta_rule
from latebloom.layers.parts import unit_norm

Outcome = tuple[Tensor, Tensor]
"""Outputs (B, T, H, V), and the state (B, H, K, V) after the last token."""


class Projections(NamedTuple):
    """The terms of the recurrence for every token, before their activations."""

    mixed: Tensor
    """(B, T, H K + N H K + N H V) queries, keys of each step, and values of each step."""
    beta: Tensor
    """(B, T, N H)"""
    decay: Tensor | None
    """(B, T, H), or (B, T, H K) of each key channel, or None for no decay."""
    noise: Tensor | None
    """(B, T, H V), or None."""
    rate: Tensor | None
    """(H,)"""
    bias: Tensor | None
    """(H,), or (H K,) of each key channel."""


def projected_delta_rule(inputs: Projections, state: Tensor | None, form: Form) -> Outcome:
    """Compute the recurrence, with the settings `form`; the state is None before the first token."""
    if not uses_fused_kernel(inputs.mixed, form.key_size):
        return _by_operations(inputs, state, form)
    mixed, *others = inputs
    return fused_rule(form, mixed, None, None, *others, state)


def _by_operations(inputs: Projections, state: Tensor | None, form: Form) -> Outcome:
    mixed, beta, decay, noise, rate, bias = inputs
    heads, steps, keys = form.heads, form.steps, form.heads * form.key_size
    q, k, v = mixed.split([keys, steps * keys, steps * heads * form.value_size], dim=-1)
    q, k, v = (_by_head(part, heads, n) for part, n in ((q, 1), (k, steps), (v, steps)))
    beta = form.most_beta * _by_head(beta, heads, steps)[..., 0].sigmoid()
    write = beta[..., None] * v
    if noise is not None:
        write = write + _at_step(_by_head(noise, heads, 1), steps, last=True)
    log_decay = None
    if decay is not None and rate is not None and bias is not None:
        log_decay = -rate.exp()[:, None, None] * _by_head(F.softplus(decay + bias), heads, 1)
        log_decay = _at_step(log_decay, steps, last=False)
    q = _at_step(unit_norm(q) * form.scale, steps, last=True)
    y, state = delta_rule(q, unit_norm(k), write, beta, log_decay, state)
    y = y if steps == 1 else y.unflatten(2, (-1, steps))[..., -1, :]
    return y.transpose(1, 2), state


def _by_head(x: Tensor, heads: int, steps: int) -> Tensor:
    """(B, T, N H size) -> (B, H, T N, size)"""
    return x.unflatten(-1, (steps, heads, -1)).flatten(1, 2).transpose(1, 2)


def _at_step(x: Tensor, steps: int, last: bool) -> Tensor:
    """Put what a token has once, (B, H, T, size), at the first or the last of its N steps: (B, H, T N, size)."""
    if steps == 1:
        return x
    padding = (0, 0, steps - 1, 0) if last else (0, 0, 0, steps - 1)
    return F.pad(x[..., None, :], padding).flatten(2, 3)
