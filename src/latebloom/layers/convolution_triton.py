"""The short convolution with its SiLU: one pass over the inputs forward, one backward.

A program owns some channels of a few sequences, walks through the tokens, and keeps the last inputs in registers. The
backward kernel walks back, so that the gradient of an input is complete when the token that it belongs to is reached.

Shapes: S stacked models, B sequences, T tokens, C channels, W tokens that a convolution sees.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 64
"""Channels of a program, at most."""
AHEAD = 4
"""Tokens whose inputs are loaded ahead, because a load cannot pass a store of the tokens before."""
SEQUENCES = 4
"""Sequences that a program of the backward kernel takes one after the other; they share a row of weight gradients."""


@triton.jit
def _convolution_forward_kernel(
    x, before, weight, bias, y, batch, tokens, row_stride, weight_stride, bias_stride,
    C: tl.constexpr, W: tl.constexpr, STARTS: tl.constexpr, BIASED: tl.constexpr, CHANNELS: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    model = sequence // batch
    columns = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real = columns < C
    shift = tl.zeros([CHANNELS], tl.float32)
    if BIASED:
        shift = tl.load(bias + model * bias_stride + columns, real, 0.0)
    weight += model * weight_stride + columns
    factors = ()
    seen = ()  # the last W - 1 inputs, the earliest first
    for i in tl.static_range(W):
        factors = factors + (tl.load(weight + i * C, real, 0.0),)  # noqa: RUF005  (the compiler knows no other way)
    for i in tl.static_range(W - 1):
        if STARTS:
            seen = seen + (tl.zeros([CHANNELS], tl.float32),)  # noqa: RUF005
        else:
            place = before + (sequence * (W - 1) + i) * C + columns
            seen = seen + (tl.load(place, real, 0.0),)  # noqa: RUF005
    x += sequence * tokens * row_stride + columns
    y += sequence * tokens * C + columns
    ahead = ()
    for i in tl.static_range(AHEAD):
        value = tl.load(x + i * row_stride, columns < tl.where(i < tokens, C, 0), 0.0)
        ahead = ahead + (value,)  # noqa: RUF005
    for t in range(tokens):
        seen = seen + (ahead[0],)  # noqa: RUF005
        value = tl.load(x + tl.minimum(t + AHEAD, tokens - 1) * row_stride, real, 0.0)
        ahead = ahead[1:] + (value,)  # noqa: RUF005
        total = shift
        for i in tl.static_range(W):
            total += factors[i] * seen[i]
        tl.store(y + t * C, total * tl.sigmoid(total), real)
        seen = seen[1:]


@triton.jit
def _pair(inputs, slopes, t, columns, channels, row_stride, C: tl.constexpr, W: tl.constexpr):
    """Return the earliest input that token t sees, and the gradient of its output; zeros before the first token."""
    at = t - (W - 1)
    first = tl.load(inputs + at * row_stride, columns < tl.where(at >= 0, channels, 0), 0.0)
    return first, tl.load(slopes + t * C, columns < tl.where(t >= 0, channels, 0), 0.0)


@triton.jit
def _convolution_backward_kernel(
    x, before, weight, bias, d_y, d_x, d_before, d_weight, d_bias, batch, tokens, row_stride, weight_stride,
    bias_stride, C: tl.constexpr, W: tl.constexpr, STARTS: tl.constexpr, BIASED: tl.constexpr,
    CHANNELS: tl.constexpr, SEQUENCES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real = columns < C
    nothing = tl.zeros([CHANNELS], tl.float32)
    shift = nothing
    if BIASED:
        shift = tl.load(bias + model * bias_stride + columns, real, 0.0)
    weight += model * weight_stride + columns
    factors = ()
    sums = ()
    for i in tl.static_range(W):
        factors = factors + (tl.load(weight + i * C, real, 0.0),)  # noqa: RUF005  (the compiler knows no other way)
        sums = sums + (nothing,)  # noqa: RUF005
    shift_sum = nothing
    for part in range(SEQUENCES):
        number = tl.program_id(0) * SEQUENCES + part
        columns_here = tl.where(number < batch, C, 0)
        here = columns < columns_here
        sequence = model * batch + number
        inputs = x + sequence * tokens * row_stride + columns
        slopes = d_y + sequence * tokens * C + columns
        grads = d_x + sequence * tokens * C + columns
        history = before
        if not STARTS:
            history += (sequence * (W - 1) + W - 1) * C + columns  # the row of the first token
        seen = ()  # the inputs of the current token, the earliest first
        owed = ()  # the gradients of the W - 1 inputs before it, from the tokens after it, the earliest first
        for i in tl.static_range(W - 1):
            at = tokens - (W - 1) + i
            value = tl.load(inputs + at * row_stride, columns < tl.where(at >= 0, columns_here, 0), 0.0)
            if not STARTS:
                value += tl.load(history + at * C, columns < tl.where(at < 0, columns_here, 0), 0.0)
            seen = seen + (value,)  # noqa: RUF005
            owed = owed + (nothing,)  # noqa: RUF005
        ahead = ()  # the inputs of the next tokens and their outputs' gradients
        for i in tl.static_range(AHEAD):
            ahead = ahead + (_pair(inputs, slopes, tokens - 1 - i, columns, columns_here, row_stride, C, W),)  # noqa: RUF005
        for back in range(tokens):
            t = tokens - 1 - back
            at = t - (W - 1)
            first, slope = ahead[0]
            pair = _pair(inputs, slopes, t - AHEAD, columns, columns_here, row_stride, C, W)
            ahead = ahead[1:] + (pair,)  # noqa: RUF005
            if not STARTS:
                first += tl.load(history + at * C, columns < tl.where(at < 0, columns_here, 0), 0.0)
            seen = (first,) + seen  # noqa: RUF005
            total = shift
            for i in tl.static_range(W):
                total += factors[i] * seen[i]
            gate = tl.sigmoid(total)
            slope *= gate * (1 + total * (1 - gate))
            shift_sum += slope
            owed = (nothing,) + owed  # noqa: RUF005
            added = ()
            totals = ()
            for i in tl.static_range(W):
                totals = totals + (sums[i] + slope * seen[i],)  # noqa: RUF005
                added = added + (owed[i] + factors[i] * slope,)  # noqa: RUF005
            sums = totals
            tl.store(grads + t * C, added[W - 1], here)
            owed = added[:-1]
            seen = seen[:-1]
        if not STARTS:
            for i in tl.static_range(W - 1):
                tl.store(d_before + (sequence * (W - 1) + i) * C + columns, owed[i], here)
    # One row per program, summed afterwards in a fixed order; atomic additions would have no fixed order.
    row = model * tl.num_programs(0) + tl.program_id(0)
    for i in tl.static_range(W):
        tl.store(d_weight + (row * W + i) * C + columns, sums[i], real)
    if BIASED:
        tl.store(d_bias + row * C + columns, shift_sum, real)


def _settings(weight: Tensor, before: Tensor | None, bias: Tensor | None) -> tuple[dict[str, int], int]:
    """Return the constants of both kernels, and the number of programs that share a row."""
    size, channels = weight.shape[1:]
    columns = min(CHANNELS, triton.next_power_of_2(channels))
    return {
        "C": channels,
        "W": size,
        "STARTS": before is None,
        "BIASED": bias is not None,
        "CHANNELS": columns,
        "AHEAD": AHEAD,
        "num_warps": max(1, columns // 32),
    }, triton.cdiv(channels, columns)


def forward(
    x: Tensor, before: Tensor | None, weight: Tensor, bias: Tensor | None, shape: tuple[int, int, int]
) -> Tensor:
    """Return the outputs (S B T, C) for rows x, which may be parts of wider rows; `shape` is S, B and T.

    before (S, B, W - 1, C), weight (S, W, C) and bias (S, C).
    """
    models, batch, tokens = shape
    settings, parts = _settings(weight, before, bias)
    y = x.new_empty(x.shape)
    _convolution_forward_kernel[(models * batch, parts)](
        x, before, weight, bias, y, batch, tokens, x.stride(0), weight.stride(0),
        0 if bias is None else bias.stride(0), **settings,
    )  # fmt: skip
    return y


def backward(
    x: Tensor, before: Tensor | None, weight: Tensor, bias: Tensor | None, d_y: Tensor, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return the gradients of x (S B T, C), `before`, the weight and the bias."""
    models, batch, tokens = shape
    settings, parts = _settings(weight, before, bias)
    size, channels = weight.shape[1:]
    programs = triton.cdiv(batch, SEQUENCES)
    d_x = x.new_empty(x.shape)
    d_before = None if before is None else torch.empty_like(before)
    d_weight = x.new_empty(models, programs, size, channels)
    d_bias = None if bias is None else x.new_empty(models, programs, channels)
    _convolution_backward_kernel[(programs, parts, models)](
        x, before, weight, bias, d_y, d_x, d_before, d_weight, d_bias, batch, tokens, x.stride(0), weight.stride(0),
        0 if bias is None else bias.stride(0), SEQUENCES=SEQUENCES, **settings,
    )  # fmt: skip
    return d_x, d_before, d_weight.sum(1), None if d_bias is None else d_bias.sum(1)
