"""State space models with a matrix state: S = decay S + k write^T, output = S^T q, where the decay may be negative.

Shapes: B sequences, H heads, T tokens, N state size (the key size), P head size (the value size).
"""

import torch
from torch import Tensor

from latebloom.layers.delta.fused import uses_fused_kernel
from latebloom.layers.delta.operation import Outcome, delta_rule, fused_by_token

TINY = 1e-20
"""Added to the size of a decay: below the rounding of any decay that matters, it keeps the logarithm finite at 0."""


def ssm_loop(q: Tensor, k: Tensor, write: Tensor, decay: Tensor, state: Tensor | None) -> Outcome:
    """Compute the recurrence token by token: the specification of `ssm`, which has the same arguments."""
    outputs = []
    state = write.new_zeros(*write.shape[:-2], k.shape[-1], write.shape[-1]) if state is None else state
    for t in range(write.shape[-2]):
        state = decay[..., t, None, None] * state + k[..., t, :, None] * write[..., t, None, :]
        outputs.append((q[..., t, :, None] * state).sum(dim=-2))
    return torch.stack(outputs, dim=-2), state


def ssm(q: Tensor, k: Tensor, write: Tensor, decay: Tensor, state: Tensor | None) -> Outcome:
    """Compute the recurrence in chunks, or with the fused kernel on a GPU.

    q and k (B, H or 1, T, N), write (B, H, T, P), decay (B, H, T) in [-1, 1].

    Negative decays only flip signs: with s the sign of all decays up to a token, S = s S' where S' has positive decays
    and is given s times what is written. The fused kernel takes decays of both signs as they are.
    """
    if write.dim() == 4 and uses_fused_kernel(k, k.shape[-1]):
        return fused_by_token(q, k, write, None, decay, state, "number")
    is_negative = decay < 0
    size = torch.where(is_negative, -decay, decay) + TINY  # the gradient of `abs` would be 0 at 0
    flips = 1.0 - 2.0 * (is_negative.cumsum(-1) % 2).to(decay.dtype)[..., None]
    outputs, state = delta_rule(q, k, flips * write, None, size.log()[..., None], state)
    return flips * outputs, flips[..., -1:, :] * state
