"""What Mamba-3 writes and forgets: one kernel forward, one backward.

A tile is some rows (a sequence and a token) of one model, with all their heads. What the next token takes of this one
needs the next token's projections; its gradient is computed where it belongs, from the row before.

Shapes: S stacked models, B sequences, T tokens, D width, N state size, H heads, R pairs of channels that rotate, P = D
/ H head size. The projections of a token are a row, as in `mamba3_rotation_triton`.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.delta.step_triton import softplus

ELEMENTS = 2048
"""Channels of a tile of the forward kernel, at least those of one token; the backward kernel takes half as many."""
TILES = 4
"""Tiles that a program of the backward kernel takes one after the other; they share a row of parameter gradients."""


@triton.jit
def _weights(place, bias, real, H: tl.constexpr):
    """Return dt, lam dt and lam of tokens, whose steps are at `place`."""
    dt = softplus(tl.load(place, real, 0.0) + bias)
    share = tl.sigmoid(tl.load(place + 2 * H, real, 0.0))
    return dt, share * dt, share


@triton.jit
def _rate(place, bias, real, LEAST: tl.constexpr, H: tl.constexpr):
    """Return the rate projection with its bias, and the rate of decay."""
    raw = tl.load(place + H, real, 0.0) + bias
    return raw, tl.maximum(softplus(raw), LEAST)


@triton.jit
def _mamba3_inputs_forward_kernel(
    projected, step_bias, rate_bias, dot, noise, write, decay, correction, first, rows, tokens, row_stride, step_stride,
    rate_stride, D: tl.constexpr, N: tl.constexpr, H: tl.constexpr, P: tl.constexpr, LEAST: tl.constexpr,
    NOISY: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    numbers = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    heads, sizes = tl.arange(0, HEADS)[None, :], tl.arange(0, SIZES)[None, None, :]
    real = (numbers < rows) & (heads < H)
    row, token = model * rows + numbers, numbers % tokens
    bias = tl.load(step_bias + model * step_stride + heads, heads < H, 0.0)
    place = projected + row * row_stride + (2 * D + 2 * N) + heads
    dt, own, _ = _weights(place, bias, real, H)
    _, rate = _rate(place, tl.load(rate_bias + model * rate_stride + heads, heads < H, 0.0), real, LEAST, H)
    tl.store(decay + row * H + heads, tl.exp(-rate * dt), real)
    tl.store(first + (row // tokens) * H + heads, dt - own, real & (token == 0))
    goes_on = real & (token + 1 < tokens)
    next_dt, next_own, _ = _weights(place + row_stride, bias, goes_on, H)
    later = tl.where(goes_on, next_dt - next_own, 0.0)
    tl.store(correction + row * H + heads, later * tl.load(dot + row * H + heads, real, 0.0), real)
    channels = heads[:, :, None] * P + sizes
    here = real[:, :, None] & (sizes < P)
    values = tl.load(projected + row[:, :, None] * row_stride + D + channels, here, 0.0)
    written = (own + later)[:, :, None] * values
    if NOISY:
        written += tl.load(noise + row[:, :, None] * D + channels, here, 0.0)
    tl.store(write + row[:, :, None] * D + channels, written, here)


@triton.jit
def _mamba3_inputs_backward_kernel(
    projected, step_bias, rate_bias, dot, d_gate, d_values, d_write, d_decay, d_correction, d_first, d_projected, d_dot,
    d_dt, d_rate, rows, tokens, row_stride, step_stride, rate_stride,
    D: tl.constexpr, N: tl.constexpr, H: tl.constexpr, R: tl.constexpr, P: tl.constexpr, LEAST: tl.constexpr,
    CONTINUES: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, SIZES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    heads, sizes = tl.arange(0, HEADS)[None, :], tl.arange(0, SIZES)[None, None, :]
    width: tl.constexpr = 2 * D + 2 * N + 3 * H + R
    bias = tl.load(step_bias + model * step_stride + heads, heads < H, 0.0)
    bias_of_rate = tl.load(rate_bias + model * rate_stride + heads, heads < H, 0.0)
    channels = heads[:, :, None] * P + sizes
    rate_sum = tl.zeros([ROWS, HEADS], tl.float32)
    for part in range(TILES):
        numbers = ((tl.program_id(0) * TILES + part) * ROWS + tl.arange(0, ROWS))[:, None]
        real = (numbers < rows) & (heads < H)
        row, token = model * rows + numbers, numbers % tokens
        here = real[:, :, None] & (sizes < P)
        place = projected + row * row_stride + (2 * D + 2 * N) + heads
        dt, own, share = _weights(place, bias, real, H)
        raw, rate = _rate(place, bias_of_rate, real, LEAST, H)
        goes_on = real & (token + 1 < tokens)
        next_dt, next_own, _ = _weights(place + row_stride, bias, goes_on, H)
        later = tl.where(goes_on, next_dt - next_own, 0.0)

        places = row[:, :, None] * D + channels
        grads = d_projected + row[:, :, None] * width + channels
        tl.store(grads, tl.load(d_gate + places, here, 0.0), here)
        values = projected + row[:, :, None] * row_stride + D + channels
        slope = tl.load(d_write + places, here, 0.0)
        d_own = tl.sum(slope * tl.load(values, here, 0.0), 2)
        added = tl.load(d_values + places, here, 0.0)
        tl.store(grads + D, added + (own + later)[:, :, None] * slope, here)
        at = row * H + heads
        tl.store(d_dot + at, later * tl.load(d_correction + at, real, 0.0), real)

        # The weight of the token before is used by that token.
        follows = real & (token > 0)
        before = follows[:, :, None] & (sizes < P)
        d_earlier = tl.sum(tl.load(d_write + places - D, before, 0.0) * tl.load(values - row_stride, before, 0.0), 2)
        d_earlier += tl.load(d_correction + at - H, follows, 0.0) * tl.load(dot + at - H, follows, 0.0)
        if CONTINUES:
            d_earlier += tl.load(d_first + (row // tokens) * H + heads, real & (token == 0), 0.0)
        d_own -= d_earlier  # the weights of a token sum to dt
        d_exponent = tl.load(d_decay + at, real, 0.0) * tl.exp(-rate * dt)
        tl.store(d_dt + at, d_earlier + d_own * share - d_exponent * rate, real)
        scalars = d_projected + row * width + (2 * D + 2 * N) + heads
        d_raw = tl.where(rate > LEAST, -d_exponent * dt * tl.sigmoid(raw), 0.0)
        rate_sum += d_raw
        tl.store(scalars + H, d_raw, real)
        tl.store(scalars + 2 * H, d_own * dt * share * (1 - share), real)
    # One row per program, summed afterwards in a fixed order.
    heads = tl.arange(0, HEADS)
    tl.store(d_rate + (model * tl.num_programs(0) + tl.program_id(0)) * H + heads, tl.sum(rate_sum, 0), heads < H)


def _settings(sizes: list[int], least: float, elements: int) -> dict[str, Any]:
    width, _, size, _, heads, *_ = sizes
    padded, head_size = triton.next_power_of_2(heads), triton.next_power_of_2(width // heads)
    return {
        "D": width,
        "N": size,
        "H": heads,
        "P": width // heads,
        "LEAST": least,
        "ROWS": max(1, elements // (padded * head_size)),
        "HEADS": padded,
        "SIZES": head_size,
        "num_warps": 4,
    }


def forward(
    projected: Tensor, step_bias: Tensor, rate_bias: Tensor, dot: Tensor, noise: Tensor | None, tokens: int,
    sizes: list[int], least: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what is written (S B T, D), decays and corrections (S B T, H), and the first token's `earlier` (S B, H).

    projected (S B T, sum of `sizes`), step_bias and rate_bias (S, H), products of q and k (S B T, H), noise (S B T, D).
    """
    settings, models, heads = _settings(sizes, least, ELEMENTS), len(step_bias), sizes[4]
    total, new = len(projected), projected.new_empty
    write, decay, correction = new(total, sizes[0]), new(total, heads), new(total, heads)
    first, rows = new(total // tokens, heads), total // models
    _mamba3_inputs_forward_kernel[(triton.cdiv(rows, settings["ROWS"]), models)](
        projected, step_bias, rate_bias, dot, noise, write, decay, correction, first, rows, tokens, projected.stride(0),
        step_bias.stride(0), rate_bias.stride(0), NOISY=noise is not None, **settings,
    )  # fmt: skip
    return write, decay, correction, first


def backward(
    projected: Tensor, step_bias: Tensor, rate_bias: Tensor, dot: Tensor, slopes: list[Any], d_projected: Tensor,
    tokens: int, sizes: list[int], least: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Fill in parts of d_projected, and return the gradients of the products, of dt (S B T, H), and of rate_bias.

    `slopes` are the gradients of gate, values, write, decay, correction, and of the first `earlier` (or None).
    """
    settings, models, heads = _settings(sizes, least, ELEMENTS // 2), len(step_bias), sizes[4]
    rows = len(projected) // models
    programs = triton.cdiv(rows, settings["ROWS"] * TILES)
    d_dot, d_dt = projected.new_empty(2, len(projected), heads)
    d_rate = projected.new_empty(models, programs, heads)
    _mamba3_inputs_backward_kernel[(programs, models)](
        projected, step_bias, rate_bias, dot, *slopes, d_projected, d_dot, d_dt, d_rate, rows, tokens,
        projected.stride(0), step_bias.stride(0), rate_bias.stride(0), R=sizes[7], CONTINUES=slopes[-1] is not None,
        TILES=TILES, **settings,
    )  # fmt: skip
    return d_dot, d_dt, d_rate.sum(1)
