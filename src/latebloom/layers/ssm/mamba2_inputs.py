"""What Mamba-2 gives its recurrence: plain, and the fused kernel.

Shapes: S stacked models, B sequences, T tokens, D width, H heads, N state size, P = D / H head size.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.memory_order import dense, rows
from latebloom.layers.precision import is_float32_on_gpu
from latebloom.layers.stacking import stackable

MAX_WIDTH = 4096
"""The fused kernel holds the channels of a token on the chip."""


class Inputs(NamedTuple):
    """What the recurrence of Mamba-2 is given, and the values that skip it."""

    q: Tensor
    """(B, T, N) C."""
    k: Tensor
    """(B, T, N) B."""
    write: Tensor
    """(B, H, T, P) dt x and the noise."""
    decay: Tensor
    """(B, H, T) a."""
    values: Tensor
    """(B, T, D) x."""


def uses_fused_kernel(mixed: Tensor) -> bool:
    """Return whether the fused kernel supports these inputs: float32 on a GPU, of at most `MAX_WIDTH` channels."""
    return is_float32_on_gpu(mixed) and mixed.shape[-1] <= MAX_WIDTH


def mamba2_inputs(
    mixed: Tensor, step: Tensor, step_bias: Tensor, rate: Tensor, noise: Tensor | None, size: int, both_signs: bool
) -> Inputs:
    """Return the inputs of the recurrence for x, B and C side by side (B, T, D + 2 N), and step (B, T, H).

    step_bias and rate (H,), noise (B, T, D), and `size` is N. With both signs the decay is 2 a - 1.
    """
    heads, width = step.shape[-1], mixed.shape[-1] - 2 * size
    if uses_fused_kernel(mixed):
        values, k, q, write, decay = _fused(mixed, step, step_bias, rate, noise, size, both_signs)
        return Inputs(q, k, write.unflatten(-1, (heads, -1)).transpose(1, 2), decay.transpose(1, 2), values)
    values, k, q = mixed.split([width, size, size], dim=-1)
    by_head = values.unflatten(-1, (heads, -1)).transpose(1, 2)
    step = F.softplus(step + step_bias).transpose(1, 2)  # (B, H, T)
    decay = (-rate.exp()[:, None] * step).exp()
    if both_signs:
        decay = 2.0 * decay - 1.0
    write = step[..., None] * by_head
    if noise is not None:
        write = write + noise.unflatten(-1, (heads, -1)).transpose(1, 2)
    return Inputs(q, k, write, decay, values)


def _single(*inputs: Any) -> tuple[Tensor, ...]:
    """Compute one model as a stack of one."""
    found = _Fused.apply(*(part[None] if isinstance(part, Tensor) else part for part in inputs))
    return tuple(part[0] for part in found)


def _stacked(*inputs: Any) -> tuple[Tensor, ...]:
    return _Fused.apply(*inputs)


_fused = stackable(_single, _stacked)


class _Fused(torch.autograd.Function):
    """Values, B and C are outputs too, so that all gradients of `mixed` come back to one kernel, which adds them."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        from latebloom.layers.ssm import mamba2_inputs_triton

        step, step_bias, rate, noise, *how = inputs
        saved: list[Any] = [*map(rows, (mixed, step)), *map(dense, (step_bias, rate))]
        ctx.save_for_backward(*saved)
        ctx.how, ctx.shapes = how, (mixed.shape, step.shape)
        noise = None if noise is None else noise.contiguous()
        write, decay = mamba2_inputs_triton.forward(*[*saved, noise, *how])
        size = how[0]
        values, k, q = mixed.split([mixed.shape[-1] - 2 * size, size, size], dim=-1)
        return values, k, q, write.view(values.shape), decay.view(step.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.ssm import mamba2_inputs_triton

        arguments: list[Any] = [*ctx.saved_tensors, [grad.contiguous() for grad in grads], *ctx.how]
        d_mixed, d_step, *d_parameters = mamba2_inputs_triton.backward(*arguments)
        d_noise = grads[3] if ctx.needs_input_grad[4] else None
        return d_mixed.view(ctx.shapes[0]), d_step.view(ctx.shapes[1]), *d_parameters, d_noise, None, None
