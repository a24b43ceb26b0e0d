"""The minGRU as an operation: by a scan that is parallel over time, and the fused kernel.

The scan computes a diagonal linear recurrence, h_t = a_t h_(t-1) + b_t.

Shapes: S stacked models, B sequences, T tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.precision import is_float32_on_gpu
from latebloom.layers.stacking import stackable


def min_gru(projected: Tensor, state: Tensor | None, noise: Tensor | None, positive: bool) -> Tensor:
    """Return the hidden states (B, T, D) of a minGRU, to which noise (B, T, D) is added.

    `projected` (B, T, 2D) holds the candidate and the update gate before their activation. A state (B, D) of None is
    zero.
    """
    compute = _fused if is_float32_on_gpu(projected) else _by_scan
    return compute(projected, state, noise, positive)


def _by_scan(projected: Tensor, state: Tensor | None, noise: Tensor | None, positive: bool) -> Tensor:
    candidate, update = projected.chunk(2, dim=-1)
    if positive:
        candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
    added = update.sigmoid() * candidate
    if noise is not None:
        added = added + noise
    if state is None:
        state = added.new_zeros(added.shape[0], added.shape[2])
    return scan((-update).sigmoid(), added, state)


class _Fused(torch.autograd.Function):
    """Keeps nothing for the gradient but what it is given and what it returns."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, state: Tensor | None, noise: Tensor | None, positive: bool) -> Tensor:
        from latebloom.layers.min_gru import min_gru_triton

        projected = projected.contiguous()
        state, noise = (None if part is None else part.contiguous() for part in (state, noise))
        outputs = min_gru_triton.forward(projected, state, noise, positive)
        ctx.save_for_backward(projected, state, outputs)
        ctx.positive = positive
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.min_gru import min_gru_triton

        projected, state, outputs = ctx.saved_tensors
        d_inputs = min_gru_triton.backward(
            projected, state, outputs, grads[0].contiguous(), ctx.positive, ctx.needs_input_grad[2]
        )
        return *d_inputs, None


_fused = stackable(_Fused.apply, _Fused.apply)  # all sequences are alike, whichever model they are of


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
