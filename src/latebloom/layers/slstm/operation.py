"""The sLSTM as an operation: the reference loop, the same with few operations per token, and the fused kernel.

The exponential gates are computed relative to a running maximum m of their logarithms, so they do not overflow. Cell
state and normalizer are both scaled by exp(-m), which cancels in their ratio.

Shapes: B sequences, T tokens, D width, H heads, E = D / H units per head. Gates are in the order input, forget, cell,
output.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from latebloom.layers.precision import product_precision
from latebloom.layers.stacking import stackable


class State(NamedTuple):
    """The state of an sLSTM, each (B, D)."""

    hidden: Tensor
    cell: Tensor
    normalizer: Tensor
    maximum: Tensor
    """The logarithm of the scale of cell state and normalizer."""


MAX_HEAD = 32
"""The recurrent weights of larger heads do not fit on the chip."""


def uses_fused_kernel(gates: Tensor, head: int) -> bool:
    """Return whether the fused kernel supports these gates: float32 on a GPU, heads of at most `MAX_HEAD` units."""
    return gates.is_cuda and gates.dtype == torch.float32 and head <= MAX_HEAD


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
        log_forget = F.logsigmoid(forget_gate) + maximum
        maximum = torch.maximum(input_gate, log_forget)
        input_weight, forget_weight = (input_gate - maximum).exp(), (log_forget - maximum).exp()
        cell = forget_weight * cell + input_weight * cell_gate.tanh()
        normalizer = forget_weight * normalizer + input_weight
        if noise is not None:
            cell = cell + normalizer * noise[:, t]
        hidden = output_gate.sigmoid() * cell / normalizer
        outputs.append(hidden)
    return torch.stack(outputs, dim=1), State(hidden, cell, normalizer, maximum)


def slstm(gates: Tensor, recurrent: Tensor, state: State, noise: Tensor | None = None) -> tuple[Tensor, State]:
    """Compute what `slstm_loop` computes, without a gradient through the maximum, which cancels in the outputs.

    It uses few operations per token on a CPU, and the fused kernel on a GPU.
    """
    outputs, *last = _slstm(gates, recurrent, *state, noise)
    return outputs, State(*last)


Outcome = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Outputs (B, T, D), and the four parts of the last state."""


def _single(*inputs: Any) -> Outcome:
    if not uses_fused_kernel(inputs[0], inputs[1].shape[-2]):
        return _by_token(*inputs)
    # One model is computed as a stack of one.
    stack: Any = (None if part is None else part[None] for part in inputs)
    outputs, hidden, cell, normalizer, maximum = (part[0] for part in fused_slstm(*stack))
    return outputs, hidden, cell, normalizer, maximum


def _by_token(gates: Tensor, recurrent: Tensor, *rest: Any) -> Outcome:
    """Compute the sLSTM with the heads in front, so that a token takes one product."""
    *state, noise = rest
    heads = len(recurrent)
    hidden, cell, normalizer, maximum = (part.unflatten(-1, (heads, -1)).transpose(0, 1) for part in state)
    split = gates.unflatten(-1, (4, heads, -1)).permute(1, 3, 0, 2, 4).flatten(-2)  # (T, H, B, 4E)
    noises = None if noise is None else noise.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    outputs = []
    for t, from_input in enumerate(split.unbind()):
        raw = torch.baddbmm(from_input, hidden, recurrent)
        input_gate, forget_gate, cell_gate, output_gate = raw.chunk(4, dim=-1)
        log_forget = F.logsigmoid(forget_gate) + maximum
        maximum = torch.maximum(input_gate, log_forget).detach()
        input_weight, forget_weight = (input_gate - maximum).exp(), (log_forget - maximum).exp()
        cell = torch.addcmul(forget_weight * cell, input_weight, cell_gate.tanh())
        normalizer = torch.addcmul(input_weight, forget_weight, normalizer)
        if noises is not None:
            cell = torch.addcmul(cell, normalizer, noises[t])
        hidden = output_gate.sigmoid() * (cell / normalizer)
        outputs.append(hidden)
    parts = (part.transpose(0, 1).flatten(1) for part in (hidden, cell, normalizer, maximum))
    hidden, cell, normalizer, maximum = parts
    return torch.stack(outputs).permute(2, 0, 1, 3).flatten(2), hidden, cell, normalizer, maximum


def _stacked(*inputs: Any) -> Outcome:
    """Compute `slstm` for S models: every tensor has an axis S in front."""
    if uses_fused_kernel(inputs[0], inputs[1].shape[-2]):
        return fused_slstm(*inputs)
    return vmap(_by_token, in_dims=tuple(None if part is None else 0 for part in inputs))(*inputs)


_slstm = stackable(_single, _stacked)


def fused_slstm(gates: Tensor, recurrent: Tensor, *rest: Any) -> Outcome:
    """Compute the sLSTM of S models with the Triton kernels: one launch for all models and tokens in each direction."""
    outputs, cell, normalizer, maximum = _Fused.apply(gates, recurrent, *rest)
    return outputs, outputs[:, :, -1], cell, normalizer, maximum


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, recurrent: Tensor, *rest: Any) -> Any:
        from latebloom.layers.slstm import slstm_triton

        *state, noise = rest
        precision = product_precision()
        # A copy, which is overwritten; in bf16, it takes half of the memory and bandwidth.
        gates = gates.to(torch.bfloat16 if precision == "bf16" else gates.dtype, copy=True).contiguous()
        recurrent = recurrent if recurrent[0].is_contiguous() else recurrent.contiguous()
        first = tuple(part.contiguous() for part in state)
        noise = None if noise is None else noise.contiguous()
        keep = any(ctx.needs_input_grad)
        outputs, last, kept = slstm_triton.forward(gates, recurrent, first, noise, precision, keep)
        if keep:
            ctx.save_for_backward(gates, recurrent, *first, noise, outputs, *kept)
        ctx.precision = precision
        ctx.mark_non_differentiable(last[2])
        return outputs, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.slstm import slstm_triton

        gates, recurrent, *first, noise, outputs, cells, normalizers, closed = ctx.saved_tensors
        # The activated gates are overwritten with their gradients, so a graph supports one backward pass.
        d_recurrent, (d_hidden, d_cell, d_normalizer) = slstm_triton.backward(
            gates, grads[:3], recurrent, first, noise, outputs, (cells, normalizers, closed), ctx.precision
        )
        # The scale exp(maximum) multiplies the first cell state and normalizer.
        d_maximum = d_cell * first[1] + d_normalizer * first[2]
        return gates.to(outputs.dtype), d_recurrent, d_hidden, d_cell, d_normalizer, d_maximum, None
