"""The rotated queries and keys of Mamba-3: one kernel forward, one backward.

A program owns a sequence with all its heads, and walks through tiles of tokens. Angles are summed in float64: in
float32 the sum of thousands of angles would lose the digits that their rotation needs.

Shapes: S stacked models, B sequences, T tokens, D width, H heads, N state size, R pairs of channels that rotate. The
projections of a token are a row: gate (D), values (D), k (N), q (N), step (H), rate (H), share (H) and omega (R).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from math import pi
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.delta.step_triton import softplus

ELEMENTS = 256
"""Pairs of channels of a tile, over all heads; at least those of one token."""
REGISTERS = 128
"""Registers a thread of the backward kernel; with more, the chip holds fewer programs at once."""
PI, TWO_PI, INVERSE = tl.constexpr(pi), tl.constexpr(2 * pi), tl.constexpr(0.5 / pi)
EPSILON = tl.constexpr(1e-5)


@triton.jit
def _standard(place, real_even, real_odd, N: tl.constexpr):
    """Return the even and odd channels of vectors (T, N) divided by their root mean square, and its inverse."""
    even, odd = tl.load(place, real_even, 0.0), tl.load(place + 1, real_odd, 0.0)
    inverse = (1 / tl.sqrt(tl.sum(even * even + odd * odd, 1) / N + EPSILON))[:, None]
    return even * inverse, odd * inverse, inverse


@triton.jit
def _pair(parameters, place, real_even, real_odd):
    return tl.load(parameters + place, real_even, 0.0), tl.load(parameters + place + 1, real_odd, 0.0)


@triton.jit
def _d_standard(d_even, d_odd, even, odd, inverse, N: tl.constexpr):
    """Return the gradients of what `_standard` was given."""
    mean = (tl.sum(d_even * even + d_odd * odd, 1) / N)[:, None]
    return inverse * (d_even - even * mean), inverse * (d_odd - odd * mean)


@triton.jit
def _tanh(x):
    """Return tanh in float32, computed in float64: errors of small angles would add up over the tokens."""
    exact = x.to(tl.float64)
    z = tl.exp(-2.0 * tl.abs(exact))
    size = (1.0 - z) / (1.0 + z)
    return tl.where(exact < 0, -size, size).to(tl.float32)


@triton.jit
def _modulo(angle):
    """Return angles from 0 to 2 pi."""
    return angle - tl.floor(angle * INVERSE) * TWO_PI


@triton.jit
def _turns(
    projected, step_bias, start, times, tokens, row_stride, heads, pairs, D: tl.constexpr, N: tl.constexpr,
    H: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Return the step with its bias, dt (T, H), tanh(omega) (T, R), cos and sin of theta (T, H, R), and the last theta.

    `start` is theta before the tile, in float64.
    """
    real = (times[:, None] < tokens) & (heads[None, :] < H)
    row = projected + times[:, None] * row_stride + (2 * D + 2 * N)
    raw = tl.load(row + heads[None, :], real, 0.0) + step_bias[None, :]
    dt = softplus(raw)
    omega = _tanh(tl.load(row + 3 * H + pairs[None, :], (times[:, None] < tokens) & (pairs[None, :] < R), 0.0))
    turn = (omega[:, None, :] * PI * dt[:, :, None]).to(tl.float64)
    theta = _modulo(start[None, :, :] + tl.cumsum(turn, 0)).to(tl.float32)
    return raw, dt, omega, tl.cos(theta), tl.sin(theta), _modulo(start + tl.sum(turn, 0))


@triton.jit
def _mamba3_rotation_forward_kernel(
    projected, norms, biases, step_bias, first, q, k, dot, starts, last, batch, tokens, row_stride, norms_stride,
    biases_stride, bias_stride, D: tl.constexpr, N: tl.constexpr, H: tl.constexpr, R: tl.constexpr,
    FRESH: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Store rotated q and k, their products before the rotation, theta before each tile, and the last theta."""
    sequence = tl.program_id(0).to(tl.int64)
    model = sequence // batch
    heads, pairs = tl.arange(0, HEADS), tl.arange(0, PAIRS)
    has_even, has_odd = 2 * pairs < N, 2 * pairs + 1 < N
    channels = heads[:, None] * N + 2 * pairs[None, :]
    even_here, odd_here = (heads[:, None] < H) & has_even[None, :], (heads[:, None] < H) & has_odd[None, :]
    turns = (heads[:, None] < H) & (pairs[None, :] < R)
    angles = sequence * H * R + heads[:, None] * R + pairs[None, :]
    scale_q, scale_q_odd = _pair(norms + model * norms_stride, 2 * pairs, has_even, has_odd)
    scale_k, scale_k_odd = _pair(norms + model * norms_stride + N, 2 * pairs, has_even, has_odd)
    biases += model * biases_stride
    bias_q, bias_q_odd = _pair(biases, channels, even_here, odd_here)
    bias_k, bias_k_odd = _pair(biases + H * N, channels, even_here, odd_here)
    step_bias = tl.load(step_bias + model * bias_stride + heads, heads < H, 0.0)
    theta = tl.zeros([HEADS, PAIRS], tl.float64)
    if not FRESH:
        theta += tl.load(first + angles, turns, 0.0)
    tiles = (tokens + TOKENS - 1) // TOKENS
    projected += sequence * tokens * row_stride
    for tile in range(tiles):
        tl.store(starts + (sequence * tiles + tile) * H * R + heads[:, None] * R + pairs[None, :], theta, turns)
        times = tile * TOKENS + tl.arange(0, TOKENS)
        real = times[:, None] < tokens
        place = projected + times[:, None] * row_stride + 2 * D + 2 * pairs[None, :]
        k_even, k_odd, _ = _standard(place, real & has_even[None, :], real & has_odd[None, :], N)
        q_even, q_odd, _ = _standard(place + N, real & has_even[None, :], real & has_odd[None, :], N)
        q_even = (q_even * scale_q[None, :])[:, None, :] + bias_q[None, :, :]
        q_odd = (q_odd * scale_q_odd[None, :])[:, None, :] + bias_q_odd[None, :, :]
        k_even = (k_even * scale_k[None, :])[:, None, :] + bias_k[None, :, :]
        k_odd = (k_odd * scale_k_odd[None, :])[:, None, :] + bias_k_odd[None, :, :]
        _, _, _, cos, sin, theta = _turns(
            projected, step_bias, theta, times, tokens, row_stride, heads, pairs, D, N, H, R
        )
        rows = sequence * tokens + times
        # A rotation by the same angle leaves the product of q and k as it is.
        product = tl.sum(q_even * k_even + q_odd * k_odd, 2)
        tl.store(dot + rows[:, None] * H + heads[None, :], product, real & (heads[None, :] < H))
        places = rows[:, None, None] * (H * N) + channels[None, :, :]
        even, odd = real[:, :, None] & even_here[None, :, :], real[:, :, None] & odd_here[None, :, :]
        tl.store(q + places, q_even * cos - q_odd * sin, even)
        tl.store(q + places + 1, q_even * sin + q_odd * cos, odd)
        tl.store(k + places, k_even * cos - k_odd * sin, even)
        tl.store(k + places + 1, k_even * sin + k_odd * cos, odd)
    tl.store(last + angles, theta.to(tl.float32), turns)


@triton.jit
def _mamba3_rotation_backward_kernel(
    projected, norms, biases, step_bias, starts, d_q, d_k, d_dot, d_dt, d_last, d_projected, d_norms, d_biases, d_bias,
    d_first, batch, tokens, row_stride, norms_stride, biases_stride, bias_stride,
    D: tl.constexpr, N: tl.constexpr, H: tl.constexpr, R: tl.constexpr, FRESH: tl.constexpr, ENDS: tl.constexpr,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Store the gradients of k, q, step and omega among those of the projections, and those of the parameters."""
    sequence = tl.program_id(0).to(tl.int64)
    model = sequence // batch
    heads, pairs = tl.arange(0, HEADS), tl.arange(0, PAIRS)
    has_even, has_odd = 2 * pairs < N, 2 * pairs + 1 < N
    channels = heads[:, None] * N + 2 * pairs[None, :]
    even_here, odd_here = (heads[:, None] < H) & has_even[None, :], (heads[:, None] < H) & has_odd[None, :]
    turns = (heads[:, None] < H) & (pairs[None, :] < R)
    angles = sequence * H * R + heads[:, None] * R + pairs[None, :]
    scale_q, scale_q_odd = _pair(norms + model * norms_stride, 2 * pairs, has_even, has_odd)
    scale_k, scale_k_odd = _pair(norms + model * norms_stride + N, 2 * pairs, has_even, has_odd)
    biases += model * biases_stride
    bias_q, bias_q_odd = _pair(biases, channels, even_here, odd_here)
    bias_k, bias_k_odd = _pair(biases + H * N, channels, even_here, odd_here)
    step_bias = tl.load(step_bias + model * bias_stride + heads, heads < H, 0.0)
    owed = tl.zeros([HEADS, PAIRS], tl.float64)  # the gradient of theta after the tile
    if ENDS:
        owed += tl.load(d_last + angles, turns, 0.0)
    nothing = tl.zeros([PAIRS], tl.float32)
    d_scale_q, d_scale_q_odd, d_scale_k, d_scale_k_odd = nothing, nothing, nothing, nothing
    nothing = tl.zeros([HEADS, PAIRS], tl.float32)
    d_bias_q, d_bias_q_odd, d_bias_k, d_bias_k_odd = nothing, nothing, nothing, nothing
    step_sum = tl.zeros([HEADS], tl.float32)
    tiles = (tokens + TOKENS - 1) // TOKENS
    width: tl.constexpr = 2 * D + 2 * N + 3 * H + R
    projected += sequence * tokens * row_stride
    for back in range(tiles):
        tile = tiles - 1 - back
        theta = tl.load(starts + (sequence * tiles + tile) * H * R + heads[:, None] * R + pairs[None, :], turns, 0.0)
        times = tile * TOKENS + tl.arange(0, TOKENS)
        rows = sequence * tokens + times
        real = times[:, None] < tokens
        even, odd = real & has_even[None, :], real & has_odd[None, :]
        place = projected + times[:, None] * row_stride + 2 * D + 2 * pairs[None, :]
        k_even, k_odd, k_inverse = _standard(place, even, odd, N)
        q_even, q_odd, q_inverse = _standard(place + N, even, odd, N)
        raw, dt, omega, cos, sin, _ = _turns(
            projected, step_bias, theta, times, tokens, row_stride, heads, pairs, D, N, H, R
        )
        places = rows[:, None, None] * (H * N) + channels[None, :, :]
        even_of_heads, odd_of_heads = real[:, :, None] & even_here[None, :, :], real[:, :, None] & odd_here[None, :, :]
        of_heads = real & (heads[None, :] < H)
        d_product = tl.load(d_dot + rows[:, None] * H + heads[None, :], of_heads, 0.0)[:, :, None]

        # The gradients of q and k before the rotation.
        upper, lower = _pair(d_q, places, even_of_heads, odd_of_heads)
        d_q_even, d_q_odd = upper * cos + lower * sin, lower * cos - upper * sin
        upper, lower = _pair(d_k, places, even_of_heads, odd_of_heads)
        d_k_even, d_k_odd = upper * cos + lower * sin, lower * cos - upper * sin
        # Rotated or not, a vector and its gradient have the same gradient of the angle.
        left = (q_even * scale_q[None, :])[:, None, :] + bias_q[None, :, :]
        left_odd = (q_odd * scale_q_odd[None, :])[:, None, :] + bias_q_odd[None, :, :]
        right = (k_even * scale_k[None, :])[:, None, :] + bias_k[None, :, :]
        right_odd = (k_odd * scale_k_odd[None, :])[:, None, :] + bias_k_odd[None, :, :]
        d_theta = d_q_odd * left - d_q_even * left_odd + d_k_odd * right - d_k_even * right_odd
        d_q_even += d_product * right
        d_q_odd += d_product * right_odd
        d_k_even += d_product * left
        d_k_odd += d_product * left_odd

        d_bias_q += tl.sum(d_q_even, 0)
        d_bias_q_odd += tl.sum(d_q_odd, 0)
        d_bias_k += tl.sum(d_k_even, 0)
        d_bias_k_odd += tl.sum(d_k_odd, 0)
        slope, slope_odd = tl.sum(d_q_even, 1), tl.sum(d_q_odd, 1)
        d_scale_q += tl.sum(slope * q_even, 0)
        d_scale_q_odd += tl.sum(slope_odd * q_odd, 0)
        grads = d_projected + rows[:, None] * width + 2 * D
        slope, slope_odd = _d_standard(
            slope * scale_q[None, :], slope_odd * scale_q_odd[None, :], q_even, q_odd, q_inverse, N
        )
        tl.store(grads + N + 2 * pairs[None, :], slope, even)
        tl.store(grads + N + 2 * pairs[None, :] + 1, slope_odd, odd)
        slope, slope_odd = tl.sum(d_k_even, 1), tl.sum(d_k_odd, 1)
        d_scale_k += tl.sum(slope * k_even, 0)
        d_scale_k_odd += tl.sum(slope_odd * k_odd, 0)
        slope, slope_odd = _d_standard(
            slope * scale_k[None, :], slope_odd * scale_k_odd[None, :], k_even, k_odd, k_inverse, N
        )
        tl.store(grads + 2 * pairs[None, :], slope, even)
        tl.store(grads + 2 * pairs[None, :] + 1, slope_odd, odd)

        # A turn moves theta at its own token and at all later ones.
        exact = tl.where(turns[None, :, :], d_theta, 0.0).to(tl.float64)
        d_turn = (owed[None, :, :] + tl.cumsum(exact, 0, reverse=True)).to(tl.float32)
        owed += tl.sum(exact, 0)
        d_omega = tl.sum(d_turn * dt[:, :, None], 1) * PI * (1 - omega * omega)
        # Masked heads have a dt too, but their turns have no gradient.
        tl.store(grads + 2 * N + 3 * H + pairs[None, :], d_omega, real & (pairs[None, :] < R))
        d_raw = tl.sum(d_turn * omega[:, None, :], 2) * PI
        d_raw += tl.load(d_dt + rows[:, None] * H + heads[None, :], of_heads, 0.0)
        d_raw = tl.where(of_heads, d_raw * tl.sigmoid(raw), 0.0)
        tl.store(grads + 2 * N + heads[None, :], d_raw, of_heads)
        step_sum += tl.sum(d_raw, 0)
    if not FRESH:
        tl.store(d_first + angles, owed.to(tl.float32), turns)
    # One row per sequence, summed afterwards in a fixed order.
    tl.store(d_norms + sequence * 2 * N + 2 * pairs, d_scale_q, has_even)
    tl.store(d_norms + sequence * 2 * N + 2 * pairs + 1, d_scale_q_odd, has_odd)
    tl.store(d_norms + (sequence * 2 + 1) * N + 2 * pairs, d_scale_k, has_even)
    tl.store(d_norms + (sequence * 2 + 1) * N + 2 * pairs + 1, d_scale_k_odd, has_odd)
    d_biases += sequence * 2 * H * N + channels
    tl.store(d_biases, d_bias_q, even_here)
    tl.store(d_biases + 1, d_bias_q_odd, odd_here)
    tl.store(d_biases + H * N, d_bias_k, even_here)
    tl.store(d_biases + H * N + 1, d_bias_k_odd, odd_here)
    tl.store(d_bias + sequence * H + heads, step_sum, heads < H)


def _settings(sizes: list[int], tokens: int) -> dict[str, Any]:
    width, _, size, _, heads, _, _, rotated = sizes
    padded, pairs = triton.next_power_of_2(heads), triton.next_power_of_2((size + 1) // 2)
    times = min(triton.next_power_of_2(tokens), max(1, ELEMENTS // (padded * pairs)))
    return {
        "D": width,
        "N": size,
        "H": heads,
        "R": rotated,
        "TOKENS": times,
        "HEADS": padded,
        "PAIRS": pairs,
        "num_warps": min(16, max(4, times * padded * pairs // 64)),
    }


def forward(
    projected: Tensor, norms: Tensor, biases: Tensor, step_bias: Tensor, first: Tensor | None, batch: int, tokens: int,
    sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return rotated q and k (S, B, T, H, N), their products (S, B, T, H), the last angle (S, B, H, R) and the starts.

    projected (S B T, sum of `sizes`), norms (S, 2, N), biases (S, 2, H, N), step_bias (S, H), first angle (S, B, H, R).
    The starts are the angles before the tiles, which the backward pass needs.
    """
    settings, models, new = _settings(sizes, tokens), len(norms), projected.new_empty
    size, heads, rotated = sizes[2], sizes[4], sizes[7]
    q, k = new(2, models, batch, tokens, heads, size)
    dot, last = new(models, batch, tokens, heads), new(models, batch, heads, rotated)
    tiles = triton.cdiv(tokens, settings["TOKENS"])
    starts = new(models, batch, tiles, heads, rotated, dtype=torch.float64)
    _mamba3_rotation_forward_kernel[(models * batch,)](
        projected, norms, biases, step_bias, first, q, k, dot, starts, last, batch, tokens, projected.stride(0),
        norms.stride(0), biases.stride(0), step_bias.stride(0), FRESH=first is None, **settings,
    )  # fmt: skip
    return q, k, dot, last, starts


def backward(
    projected: Tensor, norms: Tensor, biases: Tensor, step_bias: Tensor, starts: Tensor, fresh: bool, slopes: list[Any],
    d_projected: Tensor, batch: int, tokens: int, sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Fill in parts of d_projected, and return the gradients of norms, biases, step_bias and the first angle.

    `slopes` are the gradients of q, k, their products, dt other than by the rotation, and the last angle (or None).
    """
    settings, models, new = _settings(sizes, tokens), len(norms), projected.new_empty
    d_norms, d_biases = new(models, batch, *norms.shape[1:]), new(models, batch, *biases.shape[1:])
    d_bias = new(models, batch, sizes[4])
    d_first = None if fresh else new(models, batch, sizes[4], sizes[7])
    _mamba3_rotation_backward_kernel[(models * batch,)](
        projected, norms, biases, step_bias, starts, *slopes, d_projected, d_norms, d_biases, d_bias, d_first, batch,
        tokens, projected.stride(0), norms.stride(0), biases.stride(0), step_bias.stride(0), FRESH=fresh,
        ENDS=slopes[-1] is not None, maxnreg=REGISTERS, **settings,
    )  # fmt: skip
    return d_norms.sum(1), d_biases.sum(1), d_bias.sum(1), d_first
