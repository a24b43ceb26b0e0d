"""The sLSTM as an operation: the reference loop, and the same with few operations per token.

The exponential gates are computed relative to a running maximum m of their logarithms, so they do not overflow. Cell
state and normalizer are both scaled by exp(-m), which cancels in their ratio.

Shapes: B sequences, T tokens, D width, H heads, E = D / H units per head. Gates are in the order input, forget, cell,
output.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class State(NamedTuple):
    """The state of an sLSTM, each (B, D)."""

    hidden: Tensor
    cell: Tensor
    normalizer: Tensor
    maximum: Tensor
    """The logarithm of the scale of cell state and normalizer."""


def first_state(x: Tensor) -> State:
    """Return the state before the first token of inputs (B, T, D)."""
    zeros = x.new_zeros(x.shape[0], x.shape[2])
    return State(zeros, zeros, zeros, torch.full_like(zeros, -torch.inf))  # the first maximum is the first input gate


def slstm_loop(gates: Tensor, recurrent: Tensor, state: State, noise: Tensor | None = None) -> tuple[Tensor, State]:
    """Compute an sLSTM token by token from the input's part of the gates (B, T, 4D): the specification of `slstm`.

    The recurrent weights (H, E, 4E) map the hidden state of a head to its gates. Noise (B, T, D) is added to the ratio
    of cell state and normalizer, that is, noise times the normalizer is added to the cell state.
    """
    hidden, cell, normalizer, maximum = state
    heads, outputs = len(recurrent), []
    for t in range(gates.shape[1]):
        by_head = hidden.unflatten(-1, (heads, -1))
        from_hidden = torch.einsum("bhe,heo->bho", by_head, recurrent)  # (B, H, 4E)
        raw = gates[:, t] + from_hidden.unflatten(-1, (4, -1)).transpose(1, 2).flatten(1)
        input_gate, forget_gate, cell_gate, output_gate = raw.chunk(4, dim=-1)
        kept = F.logsigmoid(forget_gate) + maximum
        maximum = torch.maximum(input_gate, kept)
        admitted, kept = (input_gate - maximum).exp(), (kept - maximum).exp()
        cell = kept * cell + admitted * cell_gate.tanh()
        normalizer = kept * normalizer + admitted
        if noise is not None:
            cell = cell + normalizer * noise[:, t]
        hidden = output_gate.sigmoid() * cell / normalizer
        outputs.append(hidden)
    return torch.stack(outputs, dim=1), State(hidden, cell, normalizer, maximum)


def slstm(gates: Tensor, recurrent: Tensor, state: State, noise: Tensor | None = None) -> tuple[Tensor, State]:
    """Compute what `slstm_loop` computes, with the heads in front and without a gradient through the maximum.

    The maximum cancels in the outputs, so its gradient is zero.
    """
    heads = len(recurrent)
    hidden, cell, normalizer, maximum = (part.unflatten(-1, (heads, -1)).transpose(0, 1) for part in state)
    split = gates.unflatten(-1, (4, heads, -1)).permute(1, 3, 0, 2, 4).flatten(-2)  # (T, H, B, 4E)
    noises = None if noise is None else noise.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    outputs = []
    for t, from_input in enumerate(split.unbind()):
        raw = torch.baddbmm(from_input, hidden, recurrent)
        input_gate, forget_gate, cell_gate, output_gate = raw.chunk(4, dim=-1)
        kept = F.logsigmoid(forget_gate) + maximum
        maximum = torch.maximum(input_gate, kept).detach()
        admitted, kept = (input_gate - maximum).exp(), (kept - maximum).exp()
        cell = torch.addcmul(kept * cell, admitted, cell_gate.tanh())
        normalizer = torch.addcmul(admitted, kept, normalizer)
        if noises is not None:
            cell = torch.addcmul(cell, normalizer, noises[t])
        hidden = output_gate.sigmoid() * (cell / normalizer)
        outputs.append(hidden)
    last = (part.transpose(0, 1).flatten(1) for part in (hidden, cell, normalizer, maximum))
    return torch.stack(outputs).permute(2, 0, 1, 3).flatten(2), State(*last)
