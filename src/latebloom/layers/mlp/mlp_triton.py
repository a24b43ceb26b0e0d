"""The MLP of stacked models; its hidden units stay on the chip.

Shapes: S stacked models, N rows of a model, D width, H hidden units.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.product_triton import add_product, product


@triton.jit
def _share_beyond(size):
    """Return the share of the normal distribution above size >= 0, to 1e-7.

    It is 2^(size p(size) - 1): one exponential instead of the error function with its two cases. The polynomial was
    fitted to the largest error, and falls without end where the share is too small to count.
    """
    p = size * -2.33495033e-06 + 3.37378312e-05
    p = p * size - 1.61293911e-04
    p = p * size - 1.91703318e-04
    p = p * size + 7.12686477e-03
    p = p * size - 5.25336128e-02
    p = p * size - 4.59198282e-01
    p = p * size - 1.15110604e00
    return tl.exp2(p * size - 1)


@triton.jit
def _gelu(x):
    size = tl.abs(x)
    return tl.maximum(x, 0.0) - size * _share_beyond(size)


@triton.jit
def _gelu_and_slope(x):
    beyond = _share_beyond(tl.abs(x))
    below = tl.where(x < 0, beyond, 1 - beyond)
    density = tl.exp2(-0.7213475204444817 * x * x - 1.3257480647361593)  # exp(-x^2 / 2) / sqrt(2 pi)
    return x * below, below + x * density


@triton.jit
def _load_rows(base, count, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Return (ROWS, WIDTH) of `count` rows of D numbers, for products along either axis.

    tf32 products want each factor along the axis of the sum, so the tile is stored in both orders. Loaded in pieces of
    eight numbers, the threads of a warp lie on 16 rows and write both orders without waiting for the same bank.
    """
    rows = tl.arange(0, ROWS)[:, None, None]
    columns = 8 * tl.arange(0, WIDTH // 8)[None, :, None] + tl.arange(0, 8)[None, None, :]
    return tl.reshape(tl.load(base + (rows * D + columns), (rows < count) & (columns < D), 0.0), [ROWS, WIDTH])


@triton.jit
def _mlp_forward_kernel(
    x, up, up_bias, down, down_bias, y, rows_in_all, hidden_in_all, up_stride, up_bias_stride, down_stride,
    down_bias_stride, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, HIDDEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * ROWS
    rows, columns, units = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH), tl.arange(0, HIDDEN)
    real = (rows < rows_in_all - start) & (columns[None, :] < D)
    here = (model * rows_in_all + start) * D
    offsets = rows * D + columns[None, :]
    inputs = tl.load(x + here + offsets, real, 0.0)
    up_tile = up + model * up_stride + (units[None, :] * D + columns[:, None])  # [k, n] of the first product
    down_tile = down + model * down_stride + (columns[None, :] * hidden_in_all + units[:, None])
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
    tl.store(y + here + offsets, total, real)


@triton.jit
def _mlp_backward_kernel(
    x, up, up_bias, down, d_y, d_x, d_up, d_up_bias, d_down, d_down_bias, rows_in_all, hidden_in_all, up_stride,
    up_bias_stride, down_stride, part_stride, parts, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One part of a model's rows, for some hidden units after the other.

    The weights of these units stay on the chip, and the sums of their gradients in registers. What they add to d_x is
    added in memory, where no other program writes the same rows. Hidden units lie along the first axis.
    """
    part = tl.program_id(0)
    model = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    known = columns < D
    offsets = tl.arange(0, ROWS)[:, None] * D + columns[None, :]
    d_up += part * part_stride + model * hidden_in_all * D
    d_down += part * part_stride + model * hidden_in_all * D
    d_up_bias += part * part_stride + model * hidden_in_all
    for chunk in range(0, hidden_in_all, HIDDEN):
        units = chunk + tl.arange(0, HIDDEN)
        weight_place = units[:, None] * D + columns[None, :]
        up_weight = tl.load(up + model * up_stride + weight_place, known[None, :], 0.0)
        down_place = columns[:, None] * hidden_in_all + units[None, :]
        down_weight = tl.trans(tl.load(down + model * down_stride + down_place, known[:, None], 0.0))
        shift = tl.load(up_bias + model * up_bias_stride + units)[:, None]
        up_total = tl.zeros([HIDDEN, WIDTH], tl.float32)
        down_total = tl.zeros([HIDDEN, WIDTH], tl.float32)
        shift_total = tl.zeros([HIDDEN], tl.float32)
        slope_total = tl.zeros([WIDTH], tl.float32)
        for start in range(part * ROWS, rows_in_all, parts * ROWS):
            here = (model * rows_in_all + start) * D
            count = rows_in_all - start
            real = (tl.arange(0, ROWS)[:, None] < count) & known[None, :]
            inputs = _load_rows(x + here, count, D, WIDTH, ROWS)
            slope = _load_rows(d_y + here, count, D, WIDTH, ROWS)
            if chunk == 0:  # the same for all hidden units; read again in an order that is fast to sum
                slope_total += tl.sum(tl.load(d_y + here + offsets, real, 0.0), 0)
            hidden, bend = _gelu_and_slope(product(up_weight, tl.trans(inputs), PRECISION) + shift)
            down_total = add_product(down_total, hidden, slope, PRECISION)
            d_above = product(down_weight, tl.trans(slope), PRECISION) * bend
            up_total = add_product(up_total, d_above, inputs, PRECISION)
            shift_total += tl.sum(d_above, 1)
            d_inputs = tl.trans(product(tl.trans(up_weight), d_above, PRECISION))
            d_inputs += tl.load(d_x + here + offsets, real & (chunk > 0), 0.0)
            tl.store(d_x + here + offsets, d_inputs, real)
        tl.store(d_up + weight_place, up_total, known[None, :])
        tl.store(d_down + down_place, tl.trans(down_total), known[:, None])
        tl.store(d_up_bias + units, shift_total)
        if chunk == 0:
            tl.store(d_down_bias + part * part_stride + model * D + columns, slope_total, known)
        tl.debug_barrier()  # all threads see d_x


FORWARD = {"ROWS": 64, "HIDDEN": 64, "num_warps": 4, "num_stages": 1, "maxnreg": 128}
FORWARD_ROUNDED = {"ROWS": 64, "HIDDEN": 64, "num_warps": 4, "num_stages": 2}
BACKWARD = {"ROWS": 64, "HIDDEN": 128, "num_warps": 8, "num_stages": 1}
"""The fastest tiles for tf32 at width 64 on an H200."""
BACKWARD_ROUNDED = {"ROWS": 32, "HIDDEN": 64, "num_warps": 4, "num_stages": 1}
"""Factors that are rounded or split in registers take more of them."""
PROGRAMS = 132
"""Programs of the backward pass that run at once: one for each multiprocessor of an H200."""


def _parts(models: int, tiles: int) -> int:
    """Return into how many parts the rows of a model are divided, so that all programs of the backward pass end soon.

    One part would take a program about 5,000 times as long as the sums of a part's gradients.
    """
    return min(range(1, tiles + 1), key=lambda parts: -(-models * parts // PROGRAMS) / parts + models * parts / 5_000)


def _sizes(x: Tensor) -> dict[str, int]:
    return {"D": x.shape[2], "WIDTH": max(16, triton.next_power_of_2(x.shape[2]))}


def _dense(*weights: Tensor) -> list[Tensor]:
    return [weight if weight[0].is_contiguous() else weight.contiguous() for weight in weights]


def forward(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, precision: str) -> Tensor:
    """Return the MLP (S, N, D) of x (S, N, D); H is a multiple of 64."""
    models, rows, _ = x.shape
    settings = FORWARD if precision == "tf32" else FORWARD_ROUNDED
    y = torch.empty_like(x)
    up, up_bias, down, down_bias = _dense(up, up_bias, down, down_bias)
    _mlp_forward_kernel[(triton.cdiv(rows, settings["ROWS"]), models)](
        x, up, up_bias, down, down_bias, y, rows, up.shape[1], up.stride(0), up_bias.stride(0), down.stride(0),
        down_bias.stride(0), PRECISION=precision, **_sizes(x), **settings,
    )  # fmt: skip
    return y


def backward(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, d_y: Tensor, precision: str) -> tuple[Tensor, ...]:
    """Return the gradients of x, up, its bias, down and its bias."""
    models, rows, width = x.shape
    hidden = up.shape[1]
    up, up_bias, down = _dense(up, up_bias, down)
    settings = BACKWARD if precision == "tf32" else BACKWARD_ROUNDED
    if hidden % settings["HIDDEN"]:
        settings = settings | {"HIDDEN": 64}
    parts = _parts(models, triton.cdiv(rows, settings["ROWS"]))
    d_x = torch.empty_like(x)
    shapes = (models, hidden, width), (models, hidden), (models, width, hidden), (models, width)
    sizes = [math.prod(shape) for shape in shapes]
    by_part = x.new_empty(parts, sum(sizes))
    _mlp_backward_kernel[(parts, models)](
        x, up, up_bias, down, d_y, d_x, *by_part[0].split(sizes), rows, hidden, up.stride(0), up_bias.stride(0),
        down.stride(0), by_part.stride(0), parts, PRECISION=precision, **_sizes(x), **settings,
    )  # fmt: skip
    grads = (by_part[0] if parts == 1 else by_part.sum(0)).split(sizes)  # in a fixed order
    return d_x, *(grad.view(shape) for grad, shape in zip(grads, shapes, strict=True))
