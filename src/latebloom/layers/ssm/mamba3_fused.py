"""What surrounds the recurrence of Mamba-3, as two operations with fused kernels.

`Mamba3Layer._terms` and `trapezoidal` are the plain form of both.

Shapes: S stacked models, B sequences, T tokens, D width, H heads, N state size, R pairs of channels that rotate, P = D
/ H head size.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from latebloom.layers.memory_order import dense, rows
from latebloom.layers.precision import is_float32_on_gpu
from latebloom.layers.stacking import stackable

MAX_WIDTH = 4096
"""The fused kernels hold the channels of a token on the chip."""


class Inputs(NamedTuple):
    """What the recurrence is given, and what its outputs are combined with; the heads of a token are side by side."""

    gate: Tensor
    """(B, T, D) z."""
    values: Tensor
    """(B, T, D) v."""
    q: Tensor
    """(B, T, H, N) the rotated C."""
    k: Tensor
    """(B, T, H, N) the rotated B."""
    write: Tensor
    """(B, T, D) what is written under the key of a token, by itself and by the next one."""
    decay: Tensor
    """(B, T, H) a."""
    correction: Tensor
    """(B, T, H) how much of its value a token reads too early."""
    first: Tensor
    """(B, H) the weight that the first token gives to the token before."""
    angle: Tensor
    """(B, H, R) theta after the last token."""


def uses_fused_kernels(x: Tensor, channels: int) -> bool:
    """Return whether the fused kernels support these inputs: float32 on a GPU, of at most `MAX_WIDTH` channels."""
    return is_float32_on_gpu(x) and channels <= MAX_WIDTH


def mamba3_inputs(
    projected: Tensor, norms: Tensor, biases: Tensor, step: Tensor, rate: Tensor, angle: Tensor | None,
    noise: Tensor | None, sizes: list[int], least_rate: float,
) -> Inputs:  # fmt: skip
    """Return the inputs of the recurrence for the projections (B, T, sum of `sizes`).

    norms (2, N), biases (2, H, N), step and rate (H,), angle (B, H, R) before the first token, noise (B, T, D).
    """
    return Inputs(*_inputs(projected, norms, biases, step, rate, angle, noise, tuple(sizes), least_rate))


def mamba3_outputs(y: Tensor, values: Tensor, gate: Tensor, correction: Tensor, skip: Tensor) -> Tensor:
    """Return (y - correction values + skip values) SiLU(gate) as (B, T, D), for y (B, T, D) and skip (H,)."""
    return _outputs(y, values, gate, correction, skip)


def _in_front(inputs: Any) -> list[Any]:
    """Return the arguments of one model as those of a stack of one."""
    return [part[None] if isinstance(part, Tensor) else part for part in inputs]


def _single_inputs(*inputs: Any) -> tuple[Tensor, ...]:
    return tuple(part[0] for part in _Inputs.apply(*_in_front(inputs)))


def _stacked_inputs(*inputs: Any) -> tuple[Tensor, ...]:
    return _Inputs.apply(*inputs)


def _single_outputs(*inputs: Any) -> Tensor:
    return _Outputs.apply(*_in_front(inputs))[0]


def _stacked_outputs(*inputs: Any) -> Tensor:
    return _Outputs.apply(*inputs)


_inputs, _outputs = stackable(_single_inputs, _stacked_inputs), stackable(_single_outputs, _stacked_outputs)


class _Inputs(torch.autograd.Function):
    """Gate and values are outputs too, so that all gradients of the projections come back to one place."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        from latebloom.layers.ssm import mamba3_inputs_triton, mamba3_rotation_triton

        *parameters, angle, noise, sizes, least = inputs
        models, batch, tokens, _ = projected.shape
        flat, (norms, biases, step, rate) = rows(projected), map(dense, parameters)
        angle, noise = (None if part is None else part.contiguous() for part in (angle, noise))
        q, k, dot, last, starts = mamba3_rotation_triton.forward(flat, norms, biases, step, angle, batch, tokens, sizes)
        write, decay, correction, first = mamba3_inputs_triton.forward(
            flat, step, rate, dot, noise, tokens, sizes, least
        )
        ctx.save_for_backward(flat, norms, biases, step, rate, dot, starts)
        ctx.how, ctx.fresh = (models, batch, tokens, sizes, least), angle is None
        ctx.set_materialize_grads(False)  # in training nobody asks for the last angle
        gate, values, *_ = projected.split(list(sizes), dim=-1)
        heads = (models, batch, tokens, sizes[4])
        return (
            gate, values, q, k, write.view(values.shape), decay.view(heads), correction.view(heads),
            first.view(models, batch, sizes[4]), last,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        from latebloom.layers.ssm import mamba3_inputs_triton, mamba3_rotation_triton

        flat, norms, biases, step, rate, dot, starts = ctx.saved_tensors
        models, batch, tokens, sizes, least = ctx.how
        width, _, size, _, heads, *_ = sizes
        channels = (width, width, heads * size, heads * size, width, heads, heads)
        *inner, d_first, d_last = (None if grad is None else grad.contiguous() for grad in grads)
        d_gate, d_values, d_q, d_k, d_write, d_decay, d_correction = (
            flat.new_zeros(models, batch, tokens, count) if grad is None else grad
            for grad, count in zip(inner, channels, strict=True)
        )
        d_flat = flat.new_empty(flat.shape)
        slopes = [d_gate, d_values, d_write, d_decay, d_correction, d_first]
        d_dot, d_dt, d_rate = mamba3_inputs_triton.backward(flat, step, rate, dot, slopes, d_flat, tokens, sizes, least)
        slopes = [d_q, d_k, d_dot, d_dt, d_last]
        d_norms, d_biases, d_step, d_angle = mamba3_rotation_triton.backward(
            flat, norms, biases, step, starts, ctx.fresh, slopes, d_flat, batch, tokens, sizes
        )
        d_noise = d_write if ctx.needs_input_grad[6] else None
        d_projected = d_flat.view(models, batch, tokens, -1)
        return d_projected, d_norms, d_biases, d_step, d_rate, d_angle, d_noise, None, None


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, values: Tensor, gate: Tensor, correction: Tensor, skip: Tensor) -> Tensor:
        from latebloom.layers.ssm import mamba3_outputs_triton

        y, correction = y.contiguous(), correction.contiguous()  # of both, rows are not parts of wider ones
        ctx.shapes = [part.shape for part in (y, values, gate, correction, skip)]
        saved = [*map(rows, (y, values, gate, correction)), dense(skip)]
        ctx.save_for_backward(*saved)
        return mamba3_outputs_triton.forward(*saved).view(y.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.ssm import mamba3_outputs_triton

        y, values, gate, correction, skip = ctx.saved_tensors
        found = mamba3_outputs_triton.backward(y, values, gate, correction, skip, grads[0].contiguous())
        return tuple(grad.view(shape) for grad, shape in zip(found, ctx.shapes, strict=True))
