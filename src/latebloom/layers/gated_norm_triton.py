"""RMS norm with a gate: one kernel forward, one backward.

Shapes: S stacked models, R rows of a model, G groups of a row, V channels of a group.
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
    x, weight, gate, y, groups, weight_stride, gate_stride, epsilon,
    G: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
    GATES_FIRST: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    numbers = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    real = (numbers[:, None] < groups) & (columns[None, :] < V)
    group = model * groups + numbers
    places = group[:, None] * V + columns[None, :]
    values = tl.load(x + places, real, 0.0)
    scale = tl.load(weight + model * weight_stride + columns, columns < V, 0.0)
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
    x, weight, gate, d_y, d_x, d_gate, d_weight, groups, weight_stride, gate_stride, epsilon,
    G: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr,
    GATES_FIRST: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    scale = tl.load(weight + model * weight_stride + columns, columns < V, 0.0)
    d_scale = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in range(TILES):
        numbers = (tl.program_id(0) * TILES + tile) * ROWS + tl.arange(0, ROWS)
        real = (numbers[:, None] < groups) & (columns[None, :] < V)
        group = model * groups + numbers
        places = group[:, None] * V + columns[None, :]
        values = tl.load(x + places, real, 0.0)
        slope = tl.load(d_y + places, real, 0.0)
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
    # One row per program, summed afterwards in a fixed order.
    tl.store(d_weight + (model * tl.num_programs(0) + tl.program_id(0)) * V + columns, tl.sum(d_scale, 0), columns < V)


def _settings(x: Tensor, activation: str, gates_first: bool) -> dict[str, int | str]:
    padded = triton.next_power_of_2(x.shape[-1])
    return {
        "G": x.shape[-2],
        "V": x.shape[-1],
        "WIDTH": padded,
        "ROWS": max(1, ELEMENTS // padded),
        "ACTIVATION": activation,
        "GATES_FIRST": gates_first,
        "num_warps": 4,
    }


def forward(
    x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, gates_first: bool, epsilon: float
) -> Tensor:
    """Return the result (S, ..., G, V) for x (S, ..., G, V), weight (S, V) and rows of gates (S R, G V)."""
    y = torch.empty_like(x)
    groups = x[0].numel() // x.shape[-1]
    settings = _settings(x, activation, gates_first)
    gate_stride = 0 if gate is None else gate.stride(0)
    _gated_norm_forward_kernel[(triton.cdiv(groups, settings["ROWS"]), len(x))](
        x, weight, gate, y, groups, weight.stride(0), gate_stride, epsilon, **settings
    )
    return y


def backward(
    x: Tensor, weight: Tensor, gate: Tensor | None, d_y: Tensor, activation: str, gates_first: bool, epsilon: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of x, the weight and the gate."""
    d_x, d_gate = torch.empty_like(x), None if gate is None else torch.empty_like(x)
    models, groups = len(x), x[0].numel() // x.shape[-1]
    settings = _settings(x, activation, gates_first)
    gate_stride = 0 if gate is None else gate.stride(0)
    programs = triton.cdiv(groups, settings["ROWS"] * TILES)
    d_weight = x.new_empty(models, programs, x.shape[-1])
    _gated_norm_backward_kernel[(programs, models)](
        x, weight, gate, d_y, d_x, d_gate, d_weight, groups, weight.stride(0), gate_stride, epsilon, TILES=TILES,
        **settings,
    )  # fmt: skip
    return d_x, d_weight.sum(1), d_gate
