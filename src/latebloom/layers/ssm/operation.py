"""State space models with a matrix state: S = decay S + k write^T, output = S^T q, where the decay may be negative.

Shapes: B sequences, H heads, T tokens, N state size (the key size), P head size (the value size).
"""

import torch
from torch import Tensor

from latebloom.layers.delta.operation import Outcome, delta_rule

TINY = 1e-20
"""A smaller decay is taken for this one: the state is gone either way, and the logarithm stays finite."""


def ssm_loop(q: Tensor, k: Tensor, write: Tensor, decay: Tensor, state: Tensor | None) -> Outcome:
    """Compute the recurrence token by token: the specification of `ssm`, which has the same arguments."""
    outputs = []
    state = write.new_zeros(*write.shape[:-2], k.shape[-1], write.shape[-1]) if state is None else state
    for t in range(write.shape[-2]):
        state = decay[..., t, None, None] * state + k[..., t, :, None] * write[..., t, None, :]
        outputs.append((q[..., t, :, None] * state).sum(dim=-2))
    return torch.stack(outputs, dim=-2), state


def ssm(q: Tensor, k: Tensor, write: Tensor, decay: Tensor, state: Tensor | None) -> Outcome:
    """Compute the recurrence in chunks: q and k (B, H or 1, T, N), write (B, H, T, P), decay (B, H, T) in [-1, 1].

    Negative decays only flip signs: with s the sign of all decays up to a token, S = s S' where S' has positive decays
    and is given s times what is written.
    """
    log_decay = decay.abs().clamp(min=TINY).log()[..., None]
    flips = 1.0 - 2.0 * ((decay < 0).cumsum(-1) % 2).to(decay.dtype)[..., None]
    outputs, state = delta_rule(q, k, flips * write, None, log_decay, state)
    return flips * outputs, flips[..., -1:, :] * state
