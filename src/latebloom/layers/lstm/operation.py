"""The LSTM as an operation: the reference loop, the library's kernels for one model, and the fused kernel for many.

Shapes: S stacked models, B sequences, T tokens, D width. Gates are in torch's order: input, forget, cell, output.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latebloom.layers.memory_order import dense
from latebloom.layers.precision import exact_bmm, product_precision
from latebloom.layers.stacking import stackable


class Weights(NamedTuple):
    """The parameters of an LSTM with G = 4 gates, or of a GRU with G = 3, in torch's order."""

    input: Tensor
    """(G D, D)"""
    hidden: Tensor
    """(G D, D)"""
    input_bias: Tensor
    """(G D,)"""
    hidden_bias: Tensor
    """(G D,)"""


Outcome = tuple[Tensor, Tensor, Tensor]
"""Outputs (B, T, D), and the hidden state and the cell state after the last token, each (B, D)."""


def lstm_loop(x: Tensor, weights: Weights, hidden: Tensor, cell: Tensor, noise: Tensor | None = None) -> Outcome:
    """Compute an LSTM token by token, with noise (B, T, D) added to the cell state: the specification of the others.

    All tensors may have a leading axis of stacked models.
    """
    outputs = []
    bias = (weights.input_bias + weights.hidden_bias)[..., None, :]
    for t in range(x.shape[-2]):
        gates = x[..., t, :] @ weights.input.mT + hidden @ weights.hidden.mT + bias
        input_gate, forget_gate, cell_gate, output_gate = gates.chunk(4, dim=-1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * cell_gate.tanh()
        if noise is not None:
            cell = cell + noise[..., t, :]
        hidden = output_gate.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, dim=-2), hidden, cell


def lstm(x: Tensor, weights: Weights, hidden: Tensor, cell: Tensor, noise: Tensor | None = None) -> Outcome:
    """Compute what `lstm_loop` computes: with oneDNN or cuDNN for one model without noise, and with the fused kernel
    for stacked models on a GPU and for one model with noise."""
    return _lstm(x, *weights, hidden, cell, noise)


def _single(x: Tensor, *rest: Any) -> Outcome:
    *weights, hidden, cell, noise = rest
    if noise is None:
        train = torch.is_grad_enabled()
        outputs, hidden, cell = torch.lstm(x, (hidden[None], cell[None]), weights, True, 1, 0.0, train, False, True)
        return outputs, hidden[0], cell[0]
    if uses_fused_kernel(x):  # the library has no noise, so one model is computed as a stack of one
        # The axis is added after the sum. With a view of each bias, autograd would give both gradients the same
        # memory, and clipping gradients in place would scale it twice.
        bias = weights[2] + weights[3]
        alone = (part[None] for part in (x, *weights[:2], bias, hidden, cell, noise))
        outputs, cells = _Fused.apply(*alone)
        return outputs[0], outputs[0, :, -1], cells[0, :, -1]
    return lstm_loop(x, Weights(*weights), hidden, cell, noise)


def _stacked(x: Tensor, *rest: Any) -> Outcome:
    """Compute `lstm` for S models: x (S, B, T, D), weights with an axis S, states (S, B, D)."""
    *weights, hidden, cell, noise = rest
    if uses_fused_kernel(x):
        return fused_lstm(x, Weights(*weights), hidden, cell, noise)
    noises = [None] * len(x) if noise is None else noise
    each = [_single(*parts) for parts in zip(x, *weights, hidden, cell, noises, strict=True)]
    outputs, hiddens, cells = zip(*each, strict=True)
    return torch.stack(outputs), torch.stack(hiddens), torch.stack(cells)


_lstm = stackable(_single, _stacked)


def ignore_copied_weights() -> None:
    """Ignore cuDNN's warning that it copies the weights on every call.

    It trains stacked models of widths that the fused LSTM does not take, and their weights are slices of the stack. The
    filter stays, because one around each call would make Python repeat other warnings.
    """
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


def uses_fused_kernel(x: Tensor) -> bool:
    """Return whether the fused kernel supports this input: float32 on a GPU, of a width that its tiles divide."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[-1] % 16 == 0 and x.shape[-1] <= MAX_WIDTH


MAX_WIDTH = 256
"""Beyond this width one model fills a GPU with the library's kernels."""


def fused_lstm(x: Tensor, weights: Weights, hidden: Tensor, cell: Tensor, noise: Tensor | None = None) -> Outcome:
    """Compute `lstm` for S models with the Triton kernels: one launch for all models and tokens, in each direction."""
    bias = weights.input_bias + weights.hidden_bias
    outputs, cells = _Fused.apply(x, weights.input, weights.hidden, bias, hidden, cell, noise)
    return outputs, outputs[:, :, -1], cells[:, :, -1]


def project(x: Tensor, input_weight: Tensor, hidden_weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the input's part of all gates (S, B, T, G D), and the arguments as the kernels take them."""
    # In bf16, what is saved for the backward pass takes half of the memory and bandwidth.
    x = x.contiguous().to(torch.bfloat16 if product_precision() == "bf16" else x.dtype)
    input_weight = input_weight.to(x.dtype)
    hidden_weight = dense(hidden_weight)
    gates = torch.bmm(x.flatten(1, 2), input_weight.mT).unflatten(1, x.shape[1:3])
    return gates, x, input_weight, hidden_weight


class _Fused(torch.autograd.Function):
    """The kernels do what goes token by token, and narrow ones the input projection too; batched products do the rest.

    Narrow kernels join both factors of the weights' gradients, the input and the hidden state before each token.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, input_weight: Tensor, hidden_weight: Tensor, bias: Tensor, *rest: Any) -> Any:
        from latebloom.layers.lstm import lstm_triton, lstm_wide_triton

        hidden, cell, noise = rest
        precision, keep = product_precision(), any(ctx.needs_input_grad)
        ctx.kernels = lstm_triton if x.shape[-1] <= lstm_triton.MAX_WIDTH else lstm_wide_triton
        if ctx.kernels is lstm_triton:
            x, input_weight, hidden_weight = x.contiguous(), dense(input_weight), dense(hidden_weight)
            outputs, gates, joined, cells = lstm_triton.forward(
                x, input_weight, hidden_weight, bias, hidden, cell, noise, precision, keep
            )
            factors = [joined]
        else:
            gates, x, input_weight, hidden_weight = project(x, input_weight, hidden_weight)
            outputs, before, cells = lstm_wide_triton.forward(
                gates, hidden_weight, bias, hidden, cell, noise, precision, keep
            )
            factors = [x, before]
        if keep:
            ctx.save_for_backward(input_weight, hidden_weight, cell, gates, cells, *factors)
        ctx.precision = precision
        ctx.set_materialize_grads(False)  # in training the cell states have no gradient
        return outputs, cells

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input_weight, hidden_weight, cell, gates, cells, *factors = ctx.saved_tensors
        d_outputs, d_cells = grads
        d_outputs = torch.zeros_like(cells) if d_outputs is None else d_outputs.contiguous()
        d_cells = None if d_cells is None else d_cells.contiguous()
        # The activated gates are overwritten with their gradients, so a graph supports one backward pass.
        d_bias, d_hidden, d_cell = ctx.kernels.backward(
            gates, d_outputs, d_cells, hidden_weight, cell, cells, ctx.precision
        )
        flat = gates.flatten(1, 2)
        d_x = exact_bmm(flat, input_weight.to(flat.dtype)).view_as(cells)
        d_weights = [exact_bmm(flat.mT, part.flatten(1, 2)) for part in factors]
        if len(d_weights) == 1:  # copied, because the optimizer reads contiguous gradients
            d_weights = [part.contiguous() for part in d_weights[0].chunk(2, dim=-1)]
        return d_x, *d_weights, d_bias, d_hidden, d_cell, None
