"""The fused LSTM: all stacked models in one launch, all tokens inside it, the weights on the chip.

A program owns a tile of sequences of one model and walks through the tokens; nothing but the model's own weights is
shared, so programs never wait for each other and the result does not depend on their order. The forward kernel keeps
the activated gates, and the backward kernel replaces them by the gates' gradients. The gradients of the input and of
the weights, for which no token has to wait, are left to the library; for the latter, the forward kernel writes the
input and the hidden state before each token side by side.

Shapes: S stacked models, B sequences, T tokens, D width. Memory order of gates: (S, B, T, 4, D).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.product_triton import add_product, factor, product


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gate(place, real):
    """Load a gate that was stored in float32 or bf16."""
    return tl.load(place, real, 0.0).to(tl.float32)


@triton.jit
def _lstm_forward_kernel(
    x,
    input_weight,
    hidden_weight,
    bias,
    first_hidden,
    first_cell,
    noise,
    outputs,
    gates,
    joined,
    cells,
    batch,
    tokens,
    input_stride,
    hidden_stride,
    D: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    NOISY: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    inputs = tl.arange(0, UNITS)
    real = (rows[:, None] < batch) & (units[None, :] < D)
    square = (inputs[:, None] < D) & (units[None, :] < D)
    sequences = model * batch + rows

    # [k, n]: what unit n's gate takes from input k, or from unit k's output
    gate = D * D
    weight = input_weight + model * input_stride + units[None, :] * D + inputs[:, None]
    x_to_input_gate = factor(tl.load(weight, square, 0.0), PRECISION)
    x_to_forget_gate = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    x_to_cell_gate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)
    x_to_output_gate = factor(tl.load(weight + 3 * gate, square, 0.0), PRECISION)
    weight = hidden_weight + model * hidden_stride + units[None, :] * D + inputs[:, None]
    to_input_gate = factor(tl.load(weight, square, 0.0), PRECISION)
    to_forget_gate = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_cell_gate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)
    to_output_gate = factor(tl.load(weight + 3 * gate, square, 0.0), PRECISION)
    shift = bias + model * 4 * D + units
    nothing = tl.zeros([ROWS, UNITS], tl.float32)
    input_gate_bias = nothing + tl.load(shift, units < D, 0.0)[None, :]
    forget_gate_bias = nothing + tl.load(shift + D, units < D, 0.0)[None, :]
    cell_gate_bias = nothing + tl.load(shift + 2 * D, units < D, 0.0)[None, :]
    output_gate_bias = nothing + tl.load(shift + 3 * D, units < D, 0.0)[None, :]

    state = sequences[:, None] * D + units[None, :]
    hidden = tl.load(first_hidden + state, real, 0.0)
    cell = tl.load(first_cell + state, real, 0.0)
    place = sequences[:, None] * tokens * D + units[None, :]
    gates += sequences[:, None] * tokens * 4 * D + units[None, :]
    joined += sequences[:, None] * tokens * 2 * D + units[None, :]
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # The input's part of the next token's gates is computed while this token's outputs are: only the hidden state's
    # part has to wait for them. The input itself is loaded one token earlier still.
    token = tl.load(x + place, real, 0.0)
    if KEEP:
        tl.store(joined, token, real)
        tl.store(joined + D, hidden, real)
    input_gate_next = add_product(input_gate_bias, token, x_to_input_gate, PRECISION)
    forget_gate_next = add_product(forget_gate_bias, token, x_to_forget_gate, PRECISION)
    cell_gate_next = add_product(cell_gate_bias, token, x_to_cell_gate, PRECISION)
    output_gate_next = add_product(output_gate_bias, token, x_to_output_gate, PRECISION)
    token_next = tl.load(x + place + D, real & (final > 0), 0.0)
    for t in range(tokens):
        token = token_next
        token_next = tl.load(x + place + 2 * D, real & (t + 1 < final), 0.0)
        input_gate = add_product(input_gate_next, hidden, to_input_gate, PRECISION)
        forget_gate = add_product(forget_gate_next, hidden, to_forget_gate, PRECISION)
        cell_gate = add_product(cell_gate_next, hidden, to_cell_gate, PRECISION)
        output_gate = add_product(output_gate_next, hidden, to_output_gate, PRECISION)
        input_gate_next = add_product(input_gate_bias, token, x_to_input_gate, PRECISION)
        forget_gate_next = add_product(forget_gate_bias, token, x_to_forget_gate, PRECISION)
        cell_gate_next = add_product(cell_gate_bias, token, x_to_cell_gate, PRECISION)
        output_gate_next = add_product(output_gate_bias, token, x_to_output_gate, PRECISION)
        input_gate, forget_gate = tl.sigmoid(input_gate), tl.sigmoid(forget_gate)
        cell_gate, output_gate = _tanh(cell_gate), tl.sigmoid(output_gate)
        cell = forget_gate * cell + input_gate * cell_gate
        if NOISY:
            cell += tl.load(noise + place, real, 0.0)
        hidden = output_gate * _tanh(cell)
        tl.store(outputs + place, hidden, real)
        if KEEP:
            tl.store(gates, input_gate, real)
            tl.store(gates + D, forget_gate, real)
            tl.store(gates + 2 * D, cell_gate, real)
            tl.store(gates + 3 * D, output_gate, real)
            tl.store(cells + place, cell, real)
            ahead = real & (t < final)  # the next token, and the hidden state before it
            tl.store(joined + 2 * D, token, ahead)
            tl.store(joined + 3 * D, hidden, ahead)
        gates += 4 * D
        joined += 2 * D
        place += D
    if not KEEP:  # only the last cell state is needed
        tl.store(cells + state, cell, real)


@triton.jit
def _lstm_backward_kernel(
    gates,
    d_outputs,
    d_cells,
    hidden_weight,
    first_cell,
    cells,
    d_bias,
    d_first_hidden,
    d_first_cell,
    batch,
    tokens,
    weight_stride,
    D: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_D_CELLS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    inputs = tl.arange(0, UNITS)
    real = (rows[:, None] < batch) & (units[None, :] < D)
    square = (inputs[:, None] < D) & (units[None, :] < D)
    sequences = model * batch + rows

    # [n, k]: what unit n's gate gives back to unit k's output
    weight = hidden_weight + model * weight_stride + inputs[:, None] * D + units[None, :]
    gate = D * D
    to_input_gate = factor(tl.load(weight, square, 0.0), PRECISION)
    to_forget_gate = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_cell_gate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)
    to_output_gate = factor(tl.load(weight + 3 * gate, square, 0.0), PRECISION)

    state = sequences[:, None] * D + units[None, :]
    d_hidden = tl.zeros([ROWS, UNITS], tl.float32)
    d_cell = tl.zeros([ROWS, UNITS], tl.float32)
    d_input_gate_bias = tl.zeros([ROWS, UNITS], tl.float32)
    d_forget_gate_bias = tl.zeros([ROWS, UNITS], tl.float32)
    d_cell_gate_bias = tl.zeros([ROWS, UNITS], tl.float32)
    d_output_gate_bias = tl.zeros([ROWS, UNITS], tl.float32)
    last = (sequences[:, None] * tokens + tokens - 1) * D
    place = last + units[None, :]
    gates += 4 * last + units[None, :]
    cell = tl.load(cells + place, real, 0.0)
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # What the previous token needs is loaded while this token's gradients are computed.
    input_gate_next = _gate(gates, real)
    forget_gate_next = _gate(gates + D, real)
    cell_gate_next = _gate(gates + 2 * D, real)
    output_gate_next = _gate(gates + 3 * D, real)
    d_output_next = tl.load(d_outputs + place, real, 0.0)
    cell_next = tl.load(cells + place - D, real & (final > 0), 0.0)
    for back in range(tokens):
        input_gate, forget_gate = input_gate_next, forget_gate_next
        cell_gate, output_gate = cell_gate_next, output_gate_next
        cell_before = cell_next
        d_hidden += d_output_next
        if back == tokens - 1:
            cell_before = tl.load(first_cell + state, real, 0.0)
        ahead = real & (back < final)
        input_gate_next = _gate(gates - 4 * D, ahead)
        forget_gate_next = _gate(gates - 3 * D, ahead)
        cell_gate_next = _gate(gates - 2 * D, ahead)
        output_gate_next = _gate(gates - D, ahead)
        d_output_next = tl.load(d_outputs + place - D, ahead, 0.0)
        cell_next = tl.load(cells + place - 2 * D, real & (back + 1 < final), 0.0)
        activated = _tanh(cell)
        if HAS_D_CELLS:
            d_cell += tl.load(d_cells + place, real, 0.0)
        d_cell += d_hidden * output_gate * (1 - activated * activated)
        d_output_gate = d_hidden * activated * output_gate * (1 - output_gate)
        d_input_gate = d_cell * cell_gate * input_gate * (1 - input_gate)
        d_cell_gate = d_cell * input_gate * (1 - cell_gate * cell_gate)
        d_forget_gate = d_cell * cell_before * forget_gate * (1 - forget_gate)
        d_cell *= forget_gate
        tl.store(gates, d_input_gate, real)
        tl.store(gates + D, d_forget_gate, real)
        tl.store(gates + 2 * D, d_cell_gate, real)
        tl.store(gates + 3 * D, d_output_gate, real)
        d_input_gate_bias += d_input_gate
        d_forget_gate_bias += d_forget_gate
        d_cell_gate_bias += d_cell_gate
        d_output_gate_bias += d_output_gate
        d_hidden = product(d_input_gate, to_input_gate, PRECISION)
        d_hidden = add_product(d_hidden, d_forget_gate, to_forget_gate, PRECISION)
        d_hidden = add_product(d_hidden, d_cell_gate, to_cell_gate, PRECISION)
        d_hidden = add_product(d_hidden, d_output_gate, to_output_gate, PRECISION)
        cell = cell_before
        place -= D
        gates -= 4 * D
    tl.store(d_first_hidden + state, d_hidden, real)
    tl.store(d_first_cell + state, d_cell, real)
    # One row per tile, summed afterwards in a fixed order; atomic additions would have no fixed order.
    d_bias += (model * tl.num_programs(0) + tl.program_id(0)) * 4 * D + units
    tl.store(d_bias, tl.sum(d_input_gate_bias, 0), units < D)
    tl.store(d_bias + D, tl.sum(d_forget_gate_bias, 0), units < D)
    tl.store(d_bias + 2 * D, tl.sum(d_cell_gate_bias, 0), units < D)
    tl.store(d_bias + 3 * D, tl.sum(d_output_gate_bias, 0), units < D)


MAX_WIDTH = 64
"""The weights of wider models do not fit on the chip."""

PROGRAMS = 132
"""The multiprocessors of an H200, each of which has room for one forward program of width 64."""


def _tiling(width: int, precision: str) -> dict[str, int]:
    """Return the tile sizes that were fastest on an H200 for kernels with the recurrent weights alone."""
    rows, warps = (32, 8) if precision == "tf32x3" else (16, 4)
    return {"D": width, "UNITS": max(16, triton.next_power_of_2(width)), "ROWS": rows, "num_warps": warps}


def _forward_tiling(models: int, batch: int, width: int, precision: str) -> dict[str, int]:
    """Return the tile sizes that were fastest for the forward kernel."""
    units = max(16, triton.next_power_of_2(width))
    # Where the weights leave room for one program, its sequences share what is read of them. A few models leave
    # multiprocessors free, and small tiles are sooner done.
    many = units == 64 and precision != "tf32x3" and models * triton.cdiv(batch, 16) > PROGRAMS
    warps = max(4, units // 8)  # a warp's product has 8 units
    return {"D": width, "UNITS": units, "ROWS": 32 if many else 16, "num_warps": warps}


def forward(
    x: Tensor,
    input_weight: Tensor,
    hidden_weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    noise: Tensor | None,
    precision: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return outputs (S, B, T, D), activated gates (S, B, T, 4D), the input beside the hidden state before each token
    (S, B, T, 2D), and cell states (S, B, T, D).

    Without `keep`, for inference, the gates and the third are empty, and the fourth is the last cell state alone
    (S, B, 1, D).
    """
    models, batch, tokens, width = x.shape
    outputs = torch.empty_like(x)
    # In bf16, what is saved for the backward pass takes half of the memory and bandwidth.
    kind = torch.bfloat16 if precision == "bf16" else x.dtype
    gates, joined = (x.new_empty((models, batch, tokens, n * width) if keep else 0, dtype=kind) for n in (4, 2))
    cells = torch.empty_like(x) if keep else x.new_empty(models, batch, 1, width)
    settings = _forward_tiling(models, batch, width, precision)
    grid = (triton.cdiv(batch, settings["ROWS"]), models)
    _lstm_forward_kernel[grid](
        x, input_weight, hidden_weight, bias.contiguous(), hidden.contiguous(), cell.contiguous(),
        None if noise is None else noise.contiguous(), outputs, gates, joined, cells, batch, tokens,
        input_weight.stride(0), hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep, PRECISION=precision,
        **settings,
    )  # fmt: skip
    return outputs, gates, joined, cells


def backward(
    gates: Tensor,
    d_outputs: Tensor,
    d_cells: Tensor | None,
    hidden_weight: Tensor,
    cell: Tensor,
    cells: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the bias (S, 4D) and of both first states (S, B, D); `gates` become their gradients."""
    models, batch, tokens, width = cells.shape
    settings = _tiling(width, precision)
    tiles = triton.cdiv(batch, settings["ROWS"])
    d_bias = cells.new_empty(models, tiles, 4 * width)
    d_hidden, d_cell = (cells.new_empty(models, batch, width) for _ in range(2))
    _lstm_backward_kernel[(tiles, models)](
        gates, d_outputs, d_cells, hidden_weight, cell.contiguous(), cells, d_bias, d_hidden, d_cell, batch,
        tokens, hidden_weight.stride(0), HAS_D_CELLS=d_cells is not None, PRECISION=precision, **settings,
    )  # fmt: skip
    return d_bias.sum(1), d_hidden, d_cell
