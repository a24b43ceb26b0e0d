"""The LSTM as an operation: the loop that says what it computes, the library's path for one model, and the fused
kernel for many.

Shapes: S stacked models, B sequences, T tokens, D width. Gates stand in torch's order: admit, keep, candidate, reveal.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from latebloom.kernels.precision import product_precision
from latebloom.kernels.stacking import stackable


class Weights(NamedTuple):
    """An LSTM's parameters, as torch orders them."""

    input: Tensor
    """(4D, D)"""
    hidden: Tensor
    """(4D, D)"""
    input_bias: Tensor
    """(4D,)"""
    hidden_bias: Tensor
    """(4D,)"""


Outcome = tuple[Tensor, Tensor, Tensor]
"""Outputs (B, T, D), and the state after: what it says (B, D) and what it remembers (B, D)."""


def lstm_loop(x: Tensor, weights: Weights, hidden: Tensor, memory: Tensor, noise: Tensor | None = None) -> Outcome:
    """(B, T, D) from a state (B, D) twice, with noise (B, T, D) on the memory. The specification of all others.

    It holds with an axis of models in front of everything, too.
    """
    outputs = []
    bias = (weights.input_bias + weights.hidden_bias)[..., None, :]
    for t in range(x.shape[-2]):
        gates = x[..., t, :] @ weights.input.mT + hidden @ weights.hidden.mT + bias
        admit, keep, candidate, reveal = gates.chunk(4, dim=-1)
        memory = keep.sigmoid() * memory + admit.sigmoid() * candidate.tanh()
        if noise is not None:
            memory = memory + noise[..., t, :]
        hidden = reveal.sigmoid() * memory.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, dim=-2), hidden, memory


def _single(x: Tensor, *rest: Any) -> Outcome:
    *weights, hidden, memory, noise = rest
    if noise is None:
        return _library(x, weights, hidden, memory)
    if uses_fused_kernel(x):  # the library knows no noise, so that one model is a stack of one
        # The axis comes after the sum: with a view of each bias, autograd would give both gradients the same memory,
        # and whoever scales gradients in place would scale it twice.
        bias = weights[2] + weights[3]
        alone = (part[None] for part in (x, *weights[:2], bias, hidden, memory, noise))
        outputs, memories = _Fused.apply(*alone)
        return outputs[0], outputs[0, :, -1], memories[0, :, -1]
    return lstm_loop(x, Weights(*weights), hidden, memory, noise)


def _library(x: Tensor, weights: list[Tensor], hidden: Tensor, memory: Tensor) -> Outcome:
    outputs, hidden, memory = torch.lstm(
        x, (hidden[None], memory[None]), weights, True, 1, 0.0, torch.is_grad_enabled(), False, True
    )
    return outputs, hidden[0], memory[0]


def _stacked(x: Tensor, *rest: Any) -> Outcome:
    *weights, hidden, memory, noise = rest
    return stacked_lstm(x, Weights(*weights), hidden, memory, noise)


_lstm = stackable(_single, _stacked)


def lstm(x: Tensor, weights: Weights, hidden: Tensor, memory: Tensor, noise: Tensor | None = None) -> Outcome:
    """What `lstm_loop` computes: by oneDNN or cuDNN for one model, which know no noise; by a kernel of our own for
    stacked ones on a GPU, and there for one with noise."""
    return _lstm(x, *weights, hidden, memory, noise)


def stacked_lstm(x: Tensor, weights: Weights, hidden: Tensor, memory: Tensor, noise: Tensor | None = None) -> Outcome:
    """`lstm` for S models: x (S, B, T, D), weights with an axis S, states (S, B, D)."""
    if uses_fused_kernel(x):
        return fused_lstm(x, weights, hidden, memory, noise)
    noises = [None] * len(x) if noise is None else noise
    each = [_single(*parts) for parts in zip(x, *weights, hidden, memory, noises, strict=True)]
    outputs, hiddens, memories = zip(*each, strict=True)
    return torch.stack(outputs), torch.stack(hiddens), torch.stack(memories)


def uses_fused_kernel(x: Tensor) -> bool:
    """Whether the fused kernel can take these: float32 on a GPU, with a width that its tiles divide."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[-1] % 16 == 0 and x.shape[-1] <= MAX_WIDTH


MAX_WIDTH = 256
"""Beyond this width the library's kernels fill a GPU with one model."""


def fused_lstm(x: Tensor, weights: Weights, hidden: Tensor, memory: Tensor, noise: Tensor | None = None) -> Outcome:
    """`stacked_lstm` by the Triton kernels: one launch for all models and all tokens, in each direction."""
    bias = weights.input_bias + weights.hidden_bias
    outputs, memories = _Fused.apply(x, weights.input, weights.hidden, bias, hidden, memory, noise)
    return outputs, outputs[:, :, -1], memories[:, :, -1]


class _Fused(torch.autograd.Function):
    """The input's share of the gates is one batched product; the kernels do the rest, which must go token by token."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        input_weight: Tensor,
        hidden_weight: Tensor,
        bias: Tensor,
        hidden: Tensor,
        memory: Tensor,
        noise: Tensor | None,
    ) -> Any:
        models, batch, tokens, width = x.shape
        precision = product_precision()
        # In bf16 what is kept for the way back, the gates above all, takes half of the memory and of the moving.
        x = x.contiguous().to(torch.bfloat16 if precision == "bf16" else x.dtype)
        input_weight = input_weight.to(x.dtype)
        hidden_weight = hidden_weight if hidden_weight[0].is_contiguous() else hidden_weight.contiguous()
        gates = torch.bmm(x.view(models, batch * tokens, width), input_weight.mT).view(models, batch, tokens, 4 * width)
        keep = any(ctx.needs_input_grad)
        outputs, before, memories = _kernels(width).forward(
            gates, hidden_weight, bias, hidden, memory, noise, precision, keep
        )
        if keep:
            ctx.save_for_backward(x, input_weight, hidden_weight, memory, gates, before, memories)
        ctx.precision = precision
        ctx.set_materialize_grads(
            False
        )  # the memories' gradient is none at all in training, and as large as the outputs'
        return outputs, memories

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, input_weight, hidden_weight, memory, gates, before, memories = ctx.saved_tensors
        d_outputs, d_memories = grads
        d_outputs = torch.zeros_like(memories) if d_outputs is None else d_outputs.contiguous()
        d_memories = None if d_memories is None else d_memories.contiguous()
        # The activated gates are replaced by their gradients, so a graph can be gone back through only once.
        d_bias, d_hidden, d_memory = _kernels(memories.shape[-1]).backward(
            gates, d_outputs, d_memories, hidden_weight, memory, memories, ctx.precision
        )
        models, batch, tokens, width = x.shape
        flat = gates.view(models, batch * tokens, 4 * width)
        d_x = _exact_bmm(flat, input_weight).view_as(x)
        d_input_weight = _exact_bmm(flat.mT, x.view(models, batch * tokens, width))
        d_hidden_weight = _exact_bmm(flat.mT, before.view(models, batch * tokens, width))
        return d_x, d_input_weight, d_hidden_weight, d_bias, d_hidden, d_memory, None


def _exact_bmm(a: Tensor, b: Tensor) -> Tensor:
    """A batched product in float32, whatever its factors are kept in."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


def _kernels(width: int) -> Any:
    """The pair of kernels for a width: with the recurrent weights on the chip where they fit."""
    from latebloom.kernels import lstm_triton, lstm_wide_triton

    return lstm_triton if width <= lstm_triton.MAX_WIDTH else lstm_wide_triton
