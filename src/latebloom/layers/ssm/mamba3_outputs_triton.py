"""The correction, the skip and the gate of Mamba-3's outputs: one kernel forward, one backward.

A tile is some rows (a sequence and a token) of one model, with all their heads.

Shapes: S stacked models, R rows of all models, D width, H heads, P = D / H head size.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 1024
"""Channels of a tile, at least those of one row."""
TILES = 4
"""Tiles that a program of the backward kernel takes one after the other; they share a row of parameter gradients."""


@triton.jit
def _places(tile, rows, H: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, SIZES: tl.constexpr):
    """Return the rows of a tile, its heads, which heads are real, its channels, and which channels are real."""
    numbers = (tile * ROWS + tl.arange(0, ROWS))[:, None]
    heads, sizes = tl.arange(0, HEADS)[None, :], tl.arange(0, SIZES)[None, None, :]
    real = (numbers < rows) & (heads < H)
    row = tl.program_id(1).to(tl.int64) * rows + numbers
    return row, heads, real, heads[:, :, None] * P + sizes, real[:, :, None] & (sizes < P)


@triton.jit
def _mamba3_outputs_forward_kernel(
    y, values, gate, correction, skip, outputs, rows, values_stride, gate_stride, skip_stride,
    H: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    row, heads, real, channels, here = _places(tl.program_id(0), rows, H, P, ROWS, HEADS, SIZES)
    factor = tl.load(skip + tl.program_id(1).to(tl.int64) * skip_stride + heads, heads < H, 0.0)
    factor = factor - tl.load(correction + row * H + heads, real, 0.0)
    row = row[:, :, None]
    result = tl.load(y + row * (H * P) + channels, here, 0.0)
    result += factor[:, :, None] * tl.load(values + row * values_stride + channels, here, 0.0)
    gates = tl.load(gate + row * gate_stride + channels, here, 0.0)
    tl.store(outputs + row * (H * P) + channels, result * gates * tl.sigmoid(gates), here)


@triton.jit
def _mamba3_outputs_backward_kernel(
    y, values, gate, correction, skip, d_outputs, d_y, d_values, d_gate, d_correction, d_skip, rows, values_stride,
    gate_stride, skip_stride, H: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr,
    SIZES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    total = tl.zeros([ROWS, HEADS], tl.float32)
    for part in range(TILES):
        tile = tl.program_id(0) * TILES + part
        row, heads, real, channels, here = _places(tile, rows, H, P, ROWS, HEADS, SIZES)
        factor = tl.load(skip + model * skip_stride + heads, heads < H, 0.0)
        factor = factor - tl.load(correction + row * H + heads, real, 0.0)
        places = row[:, :, None] * (H * P) + channels
        value = tl.load(values + row[:, :, None] * values_stride + channels, here, 0.0)
        result = tl.load(y + places, here, 0.0) + factor[:, :, None] * value
        gates = tl.load(gate + row[:, :, None] * gate_stride + channels, here, 0.0)
        half = tl.sigmoid(gates)
        slope = tl.load(d_outputs + places, here, 0.0)
        tl.store(d_gate + places, slope * result * half * (1 + gates * (1 - half)), here)
        slope *= gates * half
        tl.store(d_y + places, slope, here)
        tl.store(d_values + places, slope * factor[:, :, None], here)
        d_factor = tl.sum(slope * value, 2)
        tl.store(d_correction + row * H + heads, -d_factor, real)
        total += d_factor
    # One row per program, summed afterwards in a fixed order.
    heads = tl.arange(0, HEADS)
    tl.store(d_skip + (model * tl.num_programs(0) + tl.program_id(0)) * H + heads, tl.sum(total, 0), heads < H)


def _settings(y: Tensor, heads: int) -> dict[str, Any]:
    size = y.shape[1] // heads
    padded = triton.next_power_of_2(heads), triton.next_power_of_2(size)
    return {
        "H": heads,
        "P": size,
        "ROWS": max(1, ELEMENTS // (padded[0] * padded[1])),
        "HEADS": padded[0],
        "SIZES": padded[1],
        "num_warps": 4,
    }


def forward(y: Tensor, values: Tensor, gate: Tensor, correction: Tensor, skip: Tensor) -> Tensor:
    """Return the outputs (R, D) for y, values and gate (R, D), correction (R, H) and skip (S, H).

    Values and gate may be parts of wider rows.
    """
    models, heads = skip.shape
    outputs, rows, settings = torch.empty_like(y), len(y) // models, _settings(y, heads)
    _mamba3_outputs_forward_kernel[(triton.cdiv(rows, settings["ROWS"]), models)](
        y, values, gate, correction, skip, outputs, rows, values.stride(0), gate.stride(0), skip.stride(0), **settings
    )
    return outputs


def backward(
    y: Tensor, values: Tensor, gate: Tensor, correction: Tensor, skip: Tensor, d_outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of y, values, gate, correction and skip."""
    models, heads = skip.shape
    rows, settings = len(y) // models, _settings(y, heads)
    programs = triton.cdiv(rows, settings["ROWS"] * TILES)
    d_y, d_values, d_gate = (torch.empty_like(y) for _ in range(3))
    d_correction, d_skip = torch.empty_like(correction), y.new_empty(models, programs, heads)
    _mamba3_outputs_backward_kernel[(programs, models)](
        y, values, gate, correction, skip, d_outputs, d_y, d_values, d_gate, d_correction, d_skip, rows,
        values.stride(0), gate.stride(0), skip.stride(0), TILES=TILES, **settings,
    )  # fmt: skip
    return d_y, d_values, d_gate, d_correction, d_skip.sum(1)
