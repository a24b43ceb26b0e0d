"""The inputs of Mamba-2's recurrence: one kernel forward, one backward.

Shapes: S stacked models, R rows (a sequence and a token) of all models, D width, H heads, N state size, P = D / H head
size. A tile is some rows of one model, with all their heads.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportIndexIssue=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.delta.step_triton import softplus

ELEMENTS = 2048
"""Elements of a tile, at least one row."""
TILES = 4
"""Tiles that a program of the backward kernel takes one after the other; they share a row of parameter gradients."""


@triton.jit
def _places(tile, rows, P: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, SIZES: tl.constexpr):
    """Return the model, rows, heads and channels of a tile, and which heads and channels of its rows are real."""
    model = tl.program_id(1).to(tl.int64)
    numbers = tile * ROWS + tl.arange(0, ROWS)
    heads = tl.arange(0, HEADS)
    real = (numbers[:, None] < rows) & (heads[None, :] < H)
    channels = heads[None, :, None] * P + tl.arange(0, SIZES)[None, None, :]
    all_real = real[:, :, None] & (tl.arange(0, SIZES)[None, None, :] < P)
    return model, model * rows + numbers, heads, channels, real, all_real


@triton.jit
def _step_and_decay(
    step, step_bias, rate, model, row, heads, real, step_stride, bias_stride, rate_stride, H: tl.constexpr
):
    """Return the step projection with its bias, dt, exp(rate) and a."""
    raw = tl.load(step + row[:, None] * step_stride + heads[None, :], real, 0.0)
    raw += tl.load(step_bias + model * bias_stride + heads, heads < H, 0.0)[None, :]
    speed = tl.exp(tl.load(rate + model * rate_stride + heads, heads < H, 0.0))[None, :]
    dt = softplus(raw)
    return raw, dt, speed, tl.exp(-speed * dt)


@triton.jit
def _mamba2_inputs_forward_kernel(
    mixed, step, step_bias, rate, noise, write, decay, rows, mixed_stride, step_stride, bias_stride, rate_stride,
    P: tl.constexpr, H: tl.constexpr, N: tl.constexpr, BOTH: tl.constexpr, NOISY: tl.constexpr, ROWS: tl.constexpr,
    HEADS: tl.constexpr, SIZES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    model, row, heads, channels, real, all_real = _places(tl.program_id(0), rows, P, H, ROWS, HEADS, SIZES)
    _, dt, _, kept = _step_and_decay(
        step, step_bias, rate, model, row, heads, real, step_stride, bias_stride, rate_stride, H
    )
    if BOTH:
        kept = 2 * kept - 1
    tl.store(decay + row[:, None] * H + heads[None, :], kept, real)
    values = tl.load(mixed + row[:, None, None] * mixed_stride + channels, all_real, 0.0)
    places = row[:, None, None] * (H * P) + channels
    written = dt[:, :, None] * values
    if NOISY:
        written += tl.load(noise + places, all_real, 0.0)
    tl.store(write + places, written, all_real)


@triton.jit
def _mamba2_inputs_backward_kernel(
    mixed, step, step_bias, rate, d_values, d_k, d_q, d_write, d_decay, d_mixed, d_step, d_bias, d_rate, rows,
    mixed_stride, step_stride, bias_stride, rate_stride,
    P: tl.constexpr, H: tl.constexpr, N: tl.constexpr, BOTH: tl.constexpr, ROWS: tl.constexpr,
    HEADS: tl.constexpr, SIZES: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    bias_sum = tl.zeros([ROWS, HEADS], tl.float32)
    rate_sum = bias_sum
    keys = tl.arange(0, KEYS)[None, :]
    for part in range(TILES):
        tile = tl.program_id(0) * TILES + part
        model, row, heads, channels, real, all_real = _places(tile, rows, P, H, ROWS, HEADS, SIZES)
        raw, dt, speed, kept = _step_and_decay(
            step, step_bias, rate, model, row, heads, real, step_stride, bias_stride, rate_stride, H
        )
        values = tl.load(mixed + row[:, None, None] * mixed_stride + channels, all_real, 0.0)
        places = row[:, None, None] * (H * P) + channels
        slope = tl.load(d_write + places, all_real, 0.0)
        added = tl.load(d_values + places, all_real, 0.0)
        wide = row[:, None, None] * (H * P + 2 * N) + channels
        tl.store(d_mixed + wide, added + dt[:, :, None] * slope, all_real)
        d_exponent = tl.load(d_decay + row[:, None] * H + heads[None, :], real, 0.0) * kept
        if BOTH:
            d_exponent *= 2
        rate_sum -= d_exponent * dt * speed
        d_raw = (tl.sum(slope * values, 2) - d_exponent * speed) * tl.sigmoid(raw)
        bias_sum += d_raw
        tl.store(d_step + row[:, None] * H + heads[None, :], d_raw, real)
        # B and C pass through: their gradients are only put in place.
        has_key = (row[:, None] < (model + 1) * rows) & (keys < N)
        place = d_mixed + row[:, None] * (H * P + 2 * N) + H * P + keys
        tl.store(place, tl.load(d_k + row[:, None] * N + keys, has_key, 0.0), has_key)
        tl.store(place + N, tl.load(d_q + row[:, None] * N + keys, has_key, 0.0), has_key)
    # One row per program, summed afterwards in a fixed order.
    heads = tl.arange(0, HEADS)
    sums = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * H + heads
    tl.store(d_bias + sums, tl.sum(bias_sum, 0), heads < H)
    tl.store(d_rate + sums, tl.sum(rate_sum, 0), heads < H)


def _settings(mixed: Tensor, heads: int, size: int, both_signs: bool) -> dict[str, Any]:
    head_size = (mixed.shape[1] - 2 * size) // heads
    padded = triton.next_power_of_2(heads) * triton.next_power_of_2(head_size)
    return {
        "P": head_size,
        "H": heads,
        "N": size,
        "BOTH": both_signs,
        "ROWS": max(1, ELEMENTS // padded),
        "HEADS": triton.next_power_of_2(heads),
        "SIZES": triton.next_power_of_2(head_size),
        "KEYS": triton.next_power_of_2(size),
        "num_warps": 4,
    }


def forward(
    mixed: Tensor, step: Tensor, step_bias: Tensor, rate: Tensor, noise: Tensor | None, size: int, both_signs: bool
) -> tuple[Tensor, Tensor]:
    """Return write (R, D) and decay (R, H) for rows mixed (R, D + 2 N) and step (R, H).

    step_bias and rate (S, H), noise (R, D), and `size` is N.
    """
    models, heads = rate.shape
    settings, rows = _settings(mixed, heads, size, both_signs), len(mixed) // models
    write, decay = mixed.new_empty(len(mixed), mixed.shape[1] - 2 * size), mixed.new_empty(len(mixed), heads)
    _mamba2_inputs_forward_kernel[(triton.cdiv(rows, settings["ROWS"]), models)](
        mixed, step, step_bias, rate, noise, write, decay, rows, mixed.stride(0), step.stride(0), step_bias.stride(0),
        rate.stride(0), NOISY=noise is not None, **settings,
    )  # fmt: skip
    return write, decay


def backward(
    mixed: Tensor, step: Tensor, step_bias: Tensor, rate: Tensor, slopes: list[Tensor], size: int, both_signs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of mixed, step, step_bias and rate; `slopes` are those of values, k, q, write and decay."""
    models, heads = rate.shape
    settings, rows = _settings(mixed, heads, size, both_signs), len(mixed) // models
    programs = triton.cdiv(rows, settings["ROWS"] * TILES)
    d_mixed, d_step = mixed.new_empty(mixed.shape), step.new_empty(step.shape)
    d_bias, d_rate = mixed.new_empty(2, models, programs, heads)
    _mamba2_inputs_backward_kernel[(programs, models)](
        mixed, step, step_bias, rate, *slopes, d_mixed, d_step, d_bias, d_rate, rows, mixed.stride(0), step.stride(0),
        step_bias.stride(0), rate.stride(0), TILES=TILES, **settings,
    )  # fmt: skip
    return d_mixed, d_step, d_bias.sum(1), d_rate.sum(1)
