"""The GRU as an operation: the reference loop, the library's kernels for one model, and all models at once.

Shapes: S stacked models, B sequences, T tokens, D width. Gates are in torch's order: reset, update, candidate.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from latebloom.layers.stacking import stackable


class Weights(NamedTuple):
    """The parameters of a GRU, in torch's order."""

    input: Tensor
    """(3D, D)"""
    hidden: Tensor
    """(3D, D)"""
    input_bias: Tensor
    """(3D,)"""
    hidden_bias: Tensor
    """(3D,)"""


Outcome = tuple[Tensor, Tensor]
"""Outputs (B, T, D), and the hidden state after the last token (B, D)."""


def gru_loop(x: Tensor, weights: Weights, hidden: Tensor, noise: Tensor | None = None) -> Outcome:
    """Compute a GRU token by token, with noise (B, T, D) added to the hidden state: the specification of the others.

    All tensors may have a leading axis of stacked models.
    """
    outputs = []
    from_input = x @ weights.input.mT.unsqueeze(-3) + weights.input_bias[..., None, None, :]
    for t in range(x.shape[-2]):
        from_hidden = hidden @ weights.hidden.mT + weights.hidden_bias[..., None, :]
        reset_x, update_x, candidate_x = from_input[..., t, :].chunk(3, dim=-1)
        reset_h, update_h, candidate_h = from_hidden.chunk(3, dim=-1)
        update = (update_x + update_h).sigmoid()
        candidate = (candidate_x + (reset_x + reset_h).sigmoid() * candidate_h).tanh()
        hidden = candidate + update * (hidden - candidate)
        if noise is not None:
            hidden = hidden + noise[..., t, :]
        outputs.append(hidden)
    return torch.stack(outputs, dim=-2), hidden


def gru(x: Tensor, weights: Weights, hidden: Tensor, noise: Tensor | None = None) -> Outcome:
    """Compute what `gru_loop` computes: with the library's kernels for one model without noise."""
    return _gru(x, *weights, hidden, noise)


def _single(x: Tensor, *rest: Any) -> Outcome:
    *weights, hidden, noise = rest
    if noise is not None:  # the library has no noise
        return gru_loop(x, Weights(*weights), hidden, noise)
    outputs, hidden = torch.gru(x, hidden[None], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
    return outputs, hidden[0]


def _stacked(x: Tensor, *rest: Any) -> Outcome:
    """Compute `gru` for S models: x (S, B, T, D), weights with an axis S, state (S, B, D)."""
    *weights, hidden, noise = rest
    return gru_loop(x, Weights(*weights), hidden, noise)


_gru = stackable(_single, _stacked)
