"""The MLP of stacked models; its hidden units stay on the chip.

Shapes: S stacked models, N rows of a model, D width, H hidden units.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.product_triton import add_product, product


@triton.jit
def _gelu(x):
    return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_and_slope(x):
    below = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return x * below, below + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _mlp_forward_kernel(
    x, up, up_bias, down, down_bias, y, rows_in_all, hidden_in_all, up_stride, up_bias_stride, down_stride,
    down_bias_stride, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HIDDEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns, units = tl.arange(0, WIDTH), tl.arange(0, HIDDEN)
    real = (rows[:, None] < rows_in_all) & (columns[None, :] < D)
    place = (model * rows_in_all + rows[:, None]) * D + columns[None, :]
    inputs = tl.load(x + place, real, 0.0)
    up_tile = up + model * up_stride + units[None, :] * D + columns[:, None]  # [k, n] of the first product
    down_tile = down + model * down_stride + columns[None, :] * hidden_in_all + units[:, None]
    up_bias += model * up_bias_stride + units
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for _ in range(0, hidden_in_all, HIDDEN):
        above = product(inputs, tl.load(up_tile, columns[:, None] < D, 0.0), PRECISION)
        hidden = _gelu(above + tl.load(up_bias)[None, :])
        total = add_product(total, hidden, tl.load(down_tile, columns[None, :] < D, 0.0), PRECISION)
        up_tile += HIDDEN * D
        down_tile += HIDDEN
        up_bias += HIDDEN
    total += tl.load(down_bias + model * down_bias_stride + columns, columns < D, 0.0)[None, :]
    tl.store(y + place, total, real)


@triton.jit
def _mlp_backward_inputs_kernel(
    x, up, up_bias, down, d_y, d_x, rows_in_all, hidden_in_all, up_stride, up_bias_stride, down_stride,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns, units = tl.arange(0, WIDTH), tl.arange(0, HIDDEN)
    real = (rows[:, None] < rows_in_all) & (columns[None, :] < D)
    place = (model * rows_in_all + rows[:, None]) * D + columns[None, :]
    inputs, slope = tl.load(x + place, real, 0.0), tl.load(d_y + place, real, 0.0)
    up_tile = up + model * up_stride + units[None, :] * D + columns[:, None]
    down_tile = down + model * down_stride + columns[:, None] * hidden_in_all + units[None, :]
    up_bias += model * up_bias_stride + units
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for _ in range(0, hidden_in_all, HIDDEN):
        weight = tl.load(up_tile, columns[:, None] < D, 0.0)
        above = product(inputs, weight, PRECISION) + tl.load(up_bias)[None, :]
        _, bend = _gelu_and_slope(above)
        d_hidden = product(slope, tl.load(down_tile, columns[:, None] < D, 0.0), PRECISION)
        total = add_product(total, d_hidden * bend, tl.trans(weight), PRECISION)
        up_tile += HIDDEN * D
        down_tile += HIDDEN
        up_bias += HIDDEN
    tl.store(d_x + place, total, real)


@triton.jit
def _mlp_backward_weights_kernel(
    x, up, up_bias, down, d_y, d_up, d_up_bias, d_down, d_down_bias, rows_in_all, hidden_in_all, up_stride,
    up_bias_stride, down_stride, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HIDDEN: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    columns, units = tl.arange(0, WIDTH), tl.program_id(0) * HIDDEN + tl.arange(0, HIDDEN)
    up_weight = tl.load(up + model * up_stride + units[None, :] * D + columns[:, None], columns[:, None] < D, 0.0)
    down_tile = down + model * down_stride + columns[:, None] * hidden_in_all + units[None, :]
    down_weight = tl.load(down_tile, columns[:, None] < D, 0.0)
    shift = tl.load(up_bias + model * up_bias_stride + units)[None, :]
    up_total = tl.zeros([HIDDEN, WIDTH], tl.float32)
    down_total = tl.zeros([HIDDEN, WIDTH], tl.float32)
    shift_total = tl.zeros([HIDDEN], tl.float32)
    slope_total = tl.zeros([WIDTH], tl.float32)
    for start in range(part * ROWS, rows_in_all, PARTS * ROWS):
        rows = start + tl.arange(0, ROWS)
        real = (rows[:, None] < rows_in_all) & (columns[None, :] < D)
        place = (model * rows_in_all + rows[:, None]) * D + columns[None, :]
        inputs, slope = tl.load(x + place, real, 0.0), tl.load(d_y + place, real, 0.0)
        hidden, bend = _gelu_and_slope(product(inputs, up_weight, PRECISION) + shift)
        d_above = product(slope, down_weight, PRECISION) * bend
        up_total = add_product(up_total, tl.trans(d_above), inputs, PRECISION)
        down_total = add_product(down_total, tl.trans(hidden), slope, PRECISION)
        shift_total += tl.sum(d_above, 0)
        slope_total += tl.sum(slope, 0)
    # The parts are summed afterwards in a fixed order.
    at = model * PARTS + part
    place = (at * hidden_in_all + units[:, None]) * D + columns[None, :]
    tl.store(d_up + place, up_total, columns[None, :] < D)
    tl.store(d_down + (at * D + columns[None, :]) * hidden_in_all + units[:, None], down_total, columns[None, :] < D)
    tl.store(d_up_bias + at * hidden_in_all + units, shift_total)
    if tl.program_id(0) == 0:  # the same for all hidden units
        tl.store(d_down_bias + at * D + columns, slope_total, columns < D)


def _tiling(kernel: str, width: int) -> dict[str, int]:
    """Return the tile sizes that were fastest on an H200."""
    padded = max(16, triton.next_power_of_2(width))
    wide = padded > 64
    hidden, stages = {"forward": (64, 1), "inputs": (32, 1), "weights": (32, 1 if wide else 3)}[kernel]
    warps = 8 if wide else 4
    return {"D": width, "WIDTH": padded, "ROWS": 64, "HIDDEN": hidden, "num_warps": warps, "num_stages": stages}


def _dense(*weights: Tensor) -> list[Tensor]:
    return [weight if weight[0].is_contiguous() else weight.contiguous() for weight in weights]


def forward(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, precision: str) -> Tensor:
    """Return the MLP (S, N, D) of x (S, N, D); H is a multiple of 64."""
    models, rows, width = x.shape
    y = torch.empty_like(x)
    up, up_bias, down, down_bias = _dense(up, up_bias, down, down_bias)
    settings = _tiling("forward", width)
    _mlp_forward_kernel[(triton.cdiv(rows, settings["ROWS"]), models)](
        x, up, up_bias, down, down_bias, y, rows, up.shape[1], up.stride(0), up_bias.stride(0), down.stride(0),
        down_bias.stride(0), PRECISION=precision, **settings,
    )  # fmt: skip
    return y


def backward(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, d_y: Tensor, precision: str) -> tuple[Tensor, ...]:
    """Return the gradients of x, up, its bias, down and its bias."""
    up, up_bias, down = _dense(up, up_bias, down)
    d_x = backward_inputs(x, up, up_bias, down, d_y, precision)
    return d_x, *backward_weights(x, up, up_bias, down, d_y, precision)


def backward_inputs(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, d_y: Tensor, precision: str) -> Tensor:
    models, rows, width = x.shape
    settings = _tiling("inputs", width)
    d_x = torch.empty_like(x)
    _mlp_backward_inputs_kernel[(triton.cdiv(rows, settings["ROWS"]), models)](
        x, up, up_bias, down, d_y, d_x, rows, up.shape[1], up.stride(0), up_bias.stride(0), down.stride(0),
        PRECISION=precision, **settings,
    )  # fmt: skip
    return d_x


def backward_weights(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, d_y: Tensor, precision: str
) -> tuple[Tensor, ...]:
    models, rows, width = x.shape
    hidden = up.shape[1]
    settings = _tiling("weights", width)
    parts = 2
    d_up, d_down = x.new_empty(models, parts, hidden, width), x.new_empty(models, parts, width, hidden)
    d_up_bias, d_down_bias = x.new_empty(models, parts, hidden), x.new_empty(models, parts, width)
    _mlp_backward_weights_kernel[(hidden // settings["HIDDEN"], parts, models)](
        x, up, up_bias, down, d_y, d_up, d_up_bias, d_down, d_down_bias, rows, hidden, up.stride(0),
        up_bias.stride(0), down.stride(0), PARTS=parts, PRECISION=precision, **settings,
    )  # fmt: skip
    return d_up.sum(1), d_up_bias.sum(1), d_down.sum(1), d_down_bias.sum(1)
