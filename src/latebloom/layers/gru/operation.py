"""The GRU as an operation: the reference loop, the library's kernels for one model, and all models at once.

Shapes: S stacked models, B sequences, T tokens, D width. Gates are in torch's order: reset, update, candidate.
"""

from typing import Any

import torch
from torch import Tensor

from latebloom.layers.lstm.operation import Weights, project, uses_fused_kernel
from latebloom.layers.precision import exact_bmm, product_precision
from latebloom.layers.stacking import stackable

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
    """Compute what `gru_loop` computes: with the library's kernels for one model without noise, and with the fused
    kernel for stacked models on a GPU and for one model with noise."""
    return _gru(x, *weights, hidden, noise)


def _single(x: Tensor, *rest: Any) -> Outcome:
    *weights, hidden, noise = rest
    if noise is None:
        outputs, hidden = torch.gru(x, hidden[None], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return outputs, hidden[0]
    if uses_fused_kernel(x):  # the library has no noise, so one model is computed as a stack of one
        stack = Weights(*(weight[None] for weight in weights))
        outputs, hidden = fused_gru(x[None], stack, hidden[None], noise[None])
        return outputs[0], hidden[0]
    return gru_loop(x, Weights(*weights), hidden, noise)


def _stacked(x: Tensor, *rest: Any) -> Outcome:
    """Compute `gru` for S models: x (S, B, T, D), weights with an axis S, state (S, B, D)."""
    *weights, hidden, noise = rest
    compute = fused_gru if uses_fused_kernel(x) else gru_loop
    return compute(x, Weights(*weights), hidden, noise)


_gru = stackable(_single, _stacked)


def fused_gru(x: Tensor, weights: Weights, hidden: Tensor, noise: Tensor | None = None) -> Outcome:
    """Compute `gru` for S models with the Triton kernels: one launch for all models and tokens, in each direction."""
    width = x.shape[-1]
    gates_bias = weights.input_bias[:, : 2 * width] + weights.hidden_bias[:, : 2 * width]
    bias = torch.cat([gates_bias, weights.input_bias[:, 2 * width :], weights.hidden_bias[:, 2 * width :]], dim=1)
    outputs = _Fused.apply(x, weights.input, weights.hidden, bias, hidden, noise)
    return outputs, outputs[:, :, -1]


class _Fused(torch.autograd.Function):
    """The input projection is one batched product; the kernels do the rest, token by token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, input_weight: Tensor, hidden_weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        hidden, noise = rest
        precision, keep = product_precision(), any(ctx.needs_input_grad)
        gates, x, input_weight, hidden_weight = project(x, input_weight, hidden_weight)
        kernels = _kernels(x.shape[-1])
        outputs, before, inner = kernels.forward(gates, hidden_weight, bias, hidden, noise, precision, keep)
        if keep:
            ctx.save_for_backward(x, input_weight, hidden_weight, hidden, gates, before, inner, outputs)
        ctx.precision = precision
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, input_weight, hidden_weight, hidden, gates, before, inner, outputs = ctx.saved_tensors
        # The activated gates are overwritten with their gradients, so a graph supports one backward pass.
        d_bias, d_hidden = _kernels(outputs.shape[-1]).backward(
            gates, inner, grads[0].contiguous(), hidden_weight, hidden, outputs, ctx.precision
        )
        width = x.shape[-1]
        flat, x_rows, before, inner = (part.flatten(1, 2) for part in (gates, x, before, inner))
        d_hidden_weight = [exact_bmm(part.mT, before) for part in (flat[..., : 2 * width], inner)]
        return (
            exact_bmm(flat, input_weight).view_as(x),
            exact_bmm(flat.mT, x_rows),
            torch.cat(d_hidden_weight, dim=1),
            d_bias,
            d_hidden,
            None,
        )


def _kernels(width: int) -> Any:
    """Return the module with the kernels for a width; the narrow ones hold the recurrent weights on the chip."""
    from latebloom.layers.gru import gru_triton, gru_wide_triton

    return gru_triton if width <= gru_triton.MAX_WIDTH else gru_wide_triton
