"""RMS norm with a gate: one kernel forward, one backward.

Shapes: S stacked models, R rows of a model, G groups of a row, V channels of a group, H heads of a group.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 2048
"""Elements of a tile."""
TILES = 8
"""Tiles that a program of the backward kernel takes one after the other; they share a row of weight gradients."""


@triton.jit
def _activation(x, ACTIVATION: tl.constexpr):
    """Return the activation of a gate, and its derivative."""
    half = tl.sigmoid(x)
    if ACTIVATION == "silu":
        return x * half, half * (1 + x * (1 - half))
    return half, half * (1 - half)


@triton.jit
def _gated_norm_forward_kernel(
    x, weight, gate, skip, skipped, y, groups, weight_stride, gate_stride, skip_stride, skipped_stride, epsilon,
    G: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
    GATES_FIRST: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    numbers = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    real = (numbers[:, None] < groups) & (columns[None, :] < V)
    group = model * groups + numbers
    places = group[:, None] * V + columns[None, :]
    values = tl.load(x + places, real, 0.0)
    scale = tl.load(weight + model * weight_stride + columns, columns < V, 0.0)
    if SKIPS:
        factors = tl.load(skip + model * skip_stride + columns // SKIPS, columns < V, 0.0)
        values += factors[None, :] * tl.load(skipped + group[:, None] * skipped_stride + columns[None, :], real, 0.0)
    if ACTIVATION != "none":
        gates = gate + (group // G * gate_stride + group % G * V)[:, None] + columns[None, :]
        factor, _ = _activation(tl.load(gates, real, 0.0), ACTIVATION)
        if GATES_FIRST:
            values *= factor
    result = values * (1 / tl.sqrt(tl.sum(values * values, 1) / V + epsilon))[:, None] * scale[None, :]
    if ACTIVATION != "none" and not GATES_FIRST:
        result *= factor
    tl.store(y + places, result, real)


@triton.jit
def _gated_norm_backward_kernel(
    x, weight, gate, skip, skipped, d_y, d_x, d_weight, d_gate, d_skip, d_skipped, groups, weight_stride, gate_stride,
    skip_stride, skipped_stride, epsilon,
    G: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
    GATES_FIRST: tl.constexpr, SKIPS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    scale = tl.load(weight + model * weight_stride + columns, columns < V, 0.0)
    d_scale = tl.zeros([ROWS, WIDTH], tl.float32)
    d_factors = d_scale
    if SKIPS:
        factors = tl.load(skip + model * skip_stride + columns // SKIPS, columns < V, 0.0)
    for tile in range(TILES):
        numbers = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        real = (numbers[:, None] < groups) & (columns[None, :] < V)
        group = model * groups + numbers
        places = group[:, None] * V + columns[None, :]
        values = tl.load(x + places, real, 0.0)
        slope = tl.load(d_y + places, real, 0.0)
        if SKIPS:
            added = tl.load(skipped + group[:, None] * skipped_stride + columns[None, :], real, 0.0)
            values += factors[None, :] * added
        inputs = values
        if ACTIVATION != "none":
            gates = gate + (group // G * gate_stride + group % G * V)[:, None] + columns[None, :]
            factor, derivative = _activation(tl.load(gates, real, 0.0), ACTIVATION)
            if GATES_FIRST:
                inputs = values * factor
        inverse = (1 / tl.sqrt(tl.sum(inputs * inputs, 1) / V + epsilon))[:, None]
        standard = inputs * inverse
        if ACTIVATION != "none" and not GATES_FIRST:
            tl.store(d_gate + places, slope * standard * scale[None, :] * derivative, real)
            slope *= factor
        d_scale += slope * standard
        slope *= scale[None, :]
        slope = inverse * (slope - standard * (tl.sum(slope * standard, 1) / V)[:, None])
        if ACTIVATION != "none" and GATES_FIRST:
            tl.store(d_gate + places, slope * values * derivative, real)
            slope *= factor
        tl.store(d_x + places, slope, real)
        if SKIPS:
            d_factors += slope * added
            tl.store(d_skipped + places, slope * factors[None, :], real)
    # One row per program, summed afterwards in a fixed order.
    row = (model * tl.num_programs(0) + tl.program_id(0)) * V + columns
    tl.store(d_weight + row, tl.sum(d_scale, 0), columns < V)
    if SKIPS:
        tl.store(d_skip + row, tl.sum(d_factors, 0), columns < V)


def _settings(x: Tensor, skip: Tensor | None, activation: str, gates_first: bool) -> dict[str, int | str]:
    size = x.shape[-1]
    padded = triton.next_power_of_2(size)
    return {
        "G": x.shape[-2],
        "V": size,
        "WIDTH": padded,
        "ROWS": max(1, (ELEMENTS if skip is None else ELEMENTS // 2) // padded),  # the skip needs registers too
        "ACTIVATION": activation,
        "GATES_FIRST": gates_first,
        "SKIPS": 0 if skip is None else size // skip.shape[1],  # channels of a head
        "num_warps": 4,
    }


def _strides(*parts: Tensor | None) -> tuple[int, ...]:
    return tuple(0 if part is None else part.stride(0) for part in parts)


def forward(
    x: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skipped: Tensor | None,
    activation: str, gates_first: bool, epsilon: float,
) -> Tensor:  # fmt: skip
    """Return the result (S, ..., G, V) for x (S, ..., G, V), weight (S, V) and rows of gates (S R, G V).

    With skip (S, H) and rows `skipped` (S R, V), each head of a row has its part of `skipped` added; G is then 1.
    """
    y = torch.empty_like(x)
    groups = x[0].numel() // x.shape[-1]
    settings = _settings(x, skip, activation, gates_first)
    _gated_norm_forward_kernel[(triton.cdiv(groups, settings["ROWS"]), len(x))](
        x, weight, gate, skip, skipped, y, groups, *_strides(weight, gate, skip, skipped), epsilon, **settings
    )
    return y


def backward(
    x: Tensor, weight: Tensor, gate: Tensor | None, skip: Tensor | None, skipped: Tensor | None, d_y: Tensor,
    activation: str, gates_first: bool, epsilon: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of x, the weight, the gate, `skip` and `skipped`."""
    d_x, d_gate, d_skipped = torch.empty_like(x), *(None if p is None else torch.empty_like(x) for p in (gate, skipped))
    models, groups = len(x), x[0].numel() // x.shape[-1]
    settings = _settings(x, skip, activation, gates_first)
    programs = triton.cdiv(groups, settings["ROWS"] * TILES)
    d_weight = x.new_empty(models, programs, x.shape[-1])
    d_skip = None if skip is None else torch.empty_like(d_weight)
    _gated_norm_backward_kernel[(programs, models)](
        x, weight, gate, skip, skipped, d_y, d_x, d_weight, d_gate, d_skip, d_skipped, groups,
        *_strides(weight, gate, skip, skipped), epsilon, TILES=TILES, **settings,
    )  # fmt: skip
    if d_skip is not None and skip is not None:
        d_skip = d_skip.sum(1).unflatten(1, (skip.shape[1], -1)).sum(-1)
    return d_x, d_weight.sum(1), d_gate, d_skip, d_skipped
