"""Layer norm of stacked models: one kernel forward, one backward.

Shapes: S stacked models, N rows of a model, D width.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.order_triton import from_the_end

BACKWARD_ELEMENTS = 1024
"""Elements of a tile of the backward kernel: a small one leaves room for many programs on a processor."""
MOST_TILES = 8
PROGRAMS = 1024
"""A program of the backward kernel takes several tiles if there are more than about this many."""


@triton.jit
def _standardize(x, real, epsilon, D: tl.constexpr):
    mean = tl.sum(x, 1) / D
    centred = tl.where(real, x - mean[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + epsilon)
    return centred * inverse[:, None], inverse


@triton.jit
def _norm_forward_kernel(
    x, weight, bias, y, rows_in_all, weight_stride, epsilon,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    model = from_the_end(1).to(tl.int64)
    rows = from_the_end(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    real = (rows[:, None] < rows_in_all) & (columns[None, :] < D)
    places = (model * rows_in_all + rows[:, None]) * D + columns[None, :]
    scale = tl.load(weight + model * weight_stride + columns, columns < D, 0.0)
    shift = tl.load(bias + model * weight_stride + columns, columns < D, 0.0)
    standard, _ = _standardize(tl.load(x + places, real, 0.0), real, epsilon, D)
    tl.store(y + places, standard * scale[None, :] + shift[None, :], real)


@triton.jit
def _norm_backward_kernel(
    x, weight, d_y, past, d_x, parts, rows_in_all, weight_stride, epsilon,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, HAS_PAST: tl.constexpr,
):  # fmt: skip
    model, part = from_the_end(1).to(tl.int64), from_the_end(0)
    columns = tl.arange(0, WIDTH)
    scale = tl.load(weight + model * weight_stride + columns, columns < D, 0.0)
    d_scale = tl.zeros([ROWS, WIDTH], tl.float32)
    d_shift = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in range(TILES):
        rows = (part * TILES + tile) * ROWS + tl.arange(0, ROWS)
        real = (rows[:, None] < rows_in_all) & (columns[None, :] < D)
        places = (model * rows_in_all + rows[:, None]) * D + columns[None, :]
        # All loads before the first sum, so that they are under way at once; nothing reads these numbers again.
        inputs = tl.load(x + places, real, 0.0, eviction_policy="evict_first")
        slope = tl.load(d_y + places, real, 0.0, eviction_policy="evict_first")
        if HAS_PAST:
            d_past = tl.load(past + places, real, 0.0, eviction_policy="evict_first")
        standard, inverse = _standardize(inputs, real, epsilon, D)
        d_scale += slope * standard
        d_shift += slope
        slope *= scale[None, :]
        along = tl.sum(slope * standard, 1) / D
        level = tl.sum(slope, 1) / D
        d_inputs = inverse[:, None] * (slope - level[:, None] - standard * along[:, None])
        if HAS_PAST:
            d_inputs += d_past
        tl.store(d_x + places, d_inputs, real)
    # A row for the weight and one for the bias, summed afterwards in a fixed order.
    row = model * tl.num_programs(0) + part
    tl.store(parts + row * D + columns, tl.sum(d_scale, 0), columns < D)
    row += tl.num_programs(1) * tl.num_programs(0)
    tl.store(parts + row * D + columns, tl.sum(d_shift, 0), columns < D)


def _tiling(width: int, elements: int = 2048) -> dict[str, int]:
    padded = max(16, triton.next_power_of_2(width))
    return {"D": width, "WIDTH": padded, "ROWS": max(1, elements // padded), "num_warps": 4}


def _tiles(count: int) -> int:
    """Return how many of so many tiles a program takes one after the other: a power of two."""
    return min(MOST_TILES, triton.next_power_of_2(max(1, count // PROGRAMS)))


def forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Return the norm (S, ..., D) of x (S, ..., D); weight and bias are (S, D)."""
    y = torch.empty_like(x)
    models, width = x.shape[0], x.shape[-1]
    rows = x[0].numel() // width
    settings = _tiling(width)
    weight, bias = _alike(weight, bias)
    grid = (triton.cdiv(rows, settings["ROWS"]), models)
    _norm_forward_kernel[grid](x, weight, bias, y, rows, weight.stride(0), epsilon, **settings)
    return y


def backward(
    x: Tensor, weight: Tensor, d_y: Tensor, past: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias; `past`, the gradient of x by another path, is added to the first."""
    d_x = torch.empty_like(x)
    models, width = x.shape[0], x.shape[-1]
    rows = x[0].numel() // width
    settings = _tiling(width, BACKWARD_ELEMENTS)
    weight, _ = _alike(weight, weight)
    tiles = _tiles(models * triton.cdiv(rows, settings["ROWS"]))
    programs = triton.cdiv(rows, settings["ROWS"] * tiles)
    parts = x.new_empty(2, models, programs, width)
    _norm_backward_kernel[(programs, models)](
        x, weight, d_y, past, d_x, parts, rows, weight.stride(0), epsilon, TILES=tiles, HAS_PAST=past is not None,
        **settings,
    )  # fmt: skip
    d_weight, d_bias = parts.sum(2)
    return d_x, d_weight, d_bias


def _alike(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with the same stride between models, as views of one row of parameters have."""
    dense = weight.stride(1) == 1 and bias.stride(1) == 1 and weight.stride(0) == bias.stride(0)
    return (weight, bias) if dense else (weight.contiguous(), bias.contiguous())
