"""A diagonal linear recurrence, h_t = a_t h_(t-1) + b_t: the reference loop, and a scan that is parallel over time.

Shapes: B sequences, T tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.stacking import stackable


def scan_loop(decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
    """Return the states (B, T, D) for a decay and an addend (B, T, D) from a state (B, D): the specification of `scan`.

    All tensors may have further leading axes.
    """
    states = []
    for t in range(decay.shape[-2]):
        state = decay[..., t, :] * state + added[..., t, :]
        states.append(state)
    return torch.stack(states, dim=-2)


class _Scan(torch.autograd.Function):
    """Doubles the stretch that each state covers, log2 T times.

    It multiplies decays and never divides by them, so nothing overflows if the decays are at most 1.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor, state: Tensor) -> Tensor:
        first = torch.addcmul(added[..., :1, :], decay[..., :1, :], state.unsqueeze(-2))
        states = _double(decay, torch.cat([first, added[..., 1:, :]], dim=-2))
        ctx.save_for_backward(decay, state, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        decay, state, states = ctx.saved_tensors
        # Backwards in time the gradient of a state is the same recurrence, with the decay of the token after it.
        following = F.pad(decay[..., 1:, :], (0, 0, 0, 1))
        d_states = _double(following.flip(-2), grads[0].flip(-2)).flip(-2)
        before = torch.cat([state.unsqueeze(-2), states[..., :-1, :]], dim=-2)
        return d_states * before, d_states, d_states[..., 0, :] * decay[..., 0, :]


def _double(decay: Tensor, states: Tensor) -> Tensor:
    """Overwrite addends (B, T, D) with the states that they add up to; the first decay is not read."""
    reach, decay = 1, decay[..., 1:, :]  # the product of the decays of the last `reach` tokens, from token `reach` on
    while reach < states.shape[-2]:
        states[..., reach:, :] += decay * states[..., :-reach, :]
        decay = decay[..., reach:, :] * decay[..., :-reach, :]
        reach *= 2
    return states


scan = stackable(_Scan.apply, _Scan.apply)
"""Compute what `scan_loop` computes."""
