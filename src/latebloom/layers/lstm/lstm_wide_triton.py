"""The fused LSTM for widths whose recurrent weights do not fit on the chip at once.

As in `lstm_triton`, a program owns a tile of sequences of one model and walks through the tokens. Here it takes the
units in chunks, loads their weights again for every token (from the cache that all programs share), and passes the
state from token to token through memory. The input projection is left to the library as well.

Shapes: S stacked models, B sequences, T tokens, D width. Memory order of gates: (S, B, T, 4, D).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.lstm.lstm_triton import _gate, _tanh
from latebloom.layers.product_triton import add_product


@triton.jit
def _lstm_wide_forward_kernel(
    gates, hidden_weight, bias, first_hidden, cell, noise, outputs, before, cells, batch, tokens, weight_stride,
    D: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, NOISY: tl.constexpr,
    KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inputs = tl.arange(0, UNITS)
    sequences = model * batch + rows
    whole = (rows[:, None] < batch) & (inputs[None, :] < D)
    weight = hidden_weight + model * weight_stride + inputs[:, None]
    gate = D * D
    for t in range(tokens):
        place = (sequences[:, None] * tokens + t) * D
        if t == 0:
            hidden = tl.load(first_hidden + sequences[:, None] * D + inputs[None, :], whole, 0.0)
        else:
            hidden = tl.load(outputs + place - D + inputs[None, :], whole, 0.0)
        if KEEP:
            tl.store(before + place + inputs[None, :], hidden, whole)
        for start in range(0, D, CHUNK):
            units = start + tl.arange(0, CHUNK)
            real = (rows[:, None] < batch) & (units[None, :] < D)
            known = (inputs[:, None] < D) & (units[None, :] < D)
            tile = weight + units[None, :] * D
            shift = bias + model * 4 * D + units
            at = gates + 4 * place + units[None, :]
            input_gate = _gate(at, real) + tl.load(shift, units < D, 0.0)[None, :]
            input_gate = add_product(input_gate, hidden, tl.load(tile, known, 0.0), PRECISION)
            forget_gate = _gate(at + D, real) + tl.load(shift + D, units < D, 0.0)[None, :]
            forget_gate = add_product(forget_gate, hidden, tl.load(tile + gate, known, 0.0), PRECISION)
            cell_gate = _gate(at + 2 * D, real) + tl.load(shift + 2 * D, units < D, 0.0)[None, :]
            cell_gate = add_product(cell_gate, hidden, tl.load(tile + 2 * gate, known, 0.0), PRECISION)
            output_gate = _gate(at + 3 * D, real) + tl.load(shift + 3 * D, units < D, 0.0)[None, :]
            output_gate = add_product(output_gate, hidden, tl.load(tile + 3 * gate, known, 0.0), PRECISION)
            input_gate, forget_gate, output_gate = (
                tl.sigmoid(input_gate),
                tl.sigmoid(forget_gate),
                tl.sigmoid(output_gate),
            )
            cell_gate = _tanh(cell_gate)
            state = cell + sequences[:, None] * D + units[None, :]
            new_cell = forget_gate * tl.load(state, real, 0.0) + input_gate * cell_gate
            if NOISY:
                new_cell += tl.load(noise + place + units[None, :], real, 0.0)
            tl.store(state, new_cell, real)
            tl.store(outputs + place + units[None, :], output_gate * _tanh(new_cell), real)
            if KEEP:
                tl.store(at, input_gate, real)
                tl.store(at + D, forget_gate, real)
                tl.store(at + 2 * D, cell_gate, real)
                tl.store(at + 3 * D, output_gate, real)
                tl.store(cells + place + units[None, :], new_cell, real)
        tl.debug_barrier()  # the next token reads the outputs of all units


@triton.jit
def _lstm_wide_backward_kernel(
    gates, d_outputs, d_cells, hidden_weight, first_cell, cells, d_hidden, d_cell, batch, tokens,
    weight_stride, D: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    HAS_D_CELLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inputs = tl.arange(0, UNITS)
    sequences = model * batch + rows
    whole = (rows[:, None] < batch) & (inputs[None, :] < D)
    weight = hidden_weight + model * weight_stride + inputs[:, None] * D
    gate = D * D
    for back in range(tokens):
        place = (sequences[:, None] * tokens + tokens - 1 - back) * D
        for start in range(0, D, CHUNK):
            units = start + tl.arange(0, CHUNK)
            real = (rows[:, None] < batch) & (units[None, :] < D)
            state = sequences[:, None] * D + units[None, :]
            if back == tokens - 1:
                cell_before = tl.load(first_cell + state, real, 0.0)
            else:
                cell_before = tl.load(cells + place - D + units[None, :], real, 0.0)
            at = gates + 4 * place + units[None, :]
            input_gate, forget_gate = _gate(at, real), _gate(at + D, real)
            cell_gate, output_gate = _gate(at + 2 * D, real), _gate(at + 3 * D, real)
            activated = _tanh(tl.load(cells + place + units[None, :], real, 0.0))
            d_output = tl.load(d_hidden + state, real, 0.0) + tl.load(d_outputs + place + units[None, :], real, 0.0)
            d_new_cell = tl.load(d_cell + state, real, 0.0) + d_output * output_gate * (1 - activated * activated)
            if HAS_D_CELLS:
                d_new_cell += tl.load(d_cells + place + units[None, :], real, 0.0)
            tl.store(at, d_new_cell * cell_gate * input_gate * (1 - input_gate), real)
            tl.store(at + D, d_new_cell * cell_before * forget_gate * (1 - forget_gate), real)
            tl.store(at + 2 * D, d_new_cell * input_gate * (1 - cell_gate * cell_gate), real)
            tl.store(at + 3 * D, d_output * activated * output_gate * (1 - output_gate), real)
            tl.store(d_cell + state, d_new_cell * forget_gate, real)
        tl.debug_barrier()  # a unit's output goes into the gates of all units
        for start in range(0, D, CHUNK):
            units = start + tl.arange(0, CHUNK)
            known = (inputs[:, None] < D) & (units[None, :] < D)
            at = gates + 4 * place + inputs[None, :]
            tile = weight + units[None, :]
            d_output = tl.zeros([ROWS, CHUNK], tl.float32)
            for which in range(4):
                d_gate = _gate(at + which * D, whole)
                d_output = add_product(d_output, d_gate, tl.load(tile + which * gate, known, 0.0), PRECISION)
            real = (rows[:, None] < batch) & (units[None, :] < D)
            tl.store(d_hidden + sequences[:, None] * D + units[None, :], d_output, real)
        tl.debug_barrier()


def _tiling(width: int) -> dict[str, int]:
    """Return the tile sizes that were fastest on an H200 at width 128."""
    units = triton.next_power_of_2(width)
    chunk = 64 if units <= 128 else 32
    return {"D": width, "UNITS": units, "CHUNK": chunk, "ROWS": 32, "num_warps": 8, "num_stages": 1}


def forward(
    gates: Tensor,
    hidden_weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    noise: Tensor | None,
    precision: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs (S, B, T, D), the hidden state before each token (S, B, T, D), and cell states (S, B, T, D).

    `gates` (S, B, T, 4D) holds the input projection and is overwritten with the activated gates. Without `keep`, for
    inference, the second is empty and the third is the last cell state alone (S, B, 1, D).
    """
    models, batch, tokens, four_widths = gates.shape
    width = four_widths // 4
    outputs = hidden.new_empty(models, batch, tokens, width)
    before = gates.new_empty(outputs.shape if keep else 0)
    cells = torch.empty_like(outputs) if keep else outputs.new_empty(0)
    last = cell.contiguous().clone()
    settings = _tiling(width)
    _lstm_wide_forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, hidden_weight, bias.contiguous(), hidden.contiguous(), last,
        None if noise is None else noise.contiguous(), outputs, before, cells, batch, tokens,
        hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep, PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, before, cells if keep else last[:, :, None]


def backward(
    gates: Tensor,
    d_outputs: Tensor,
    d_cells: Tensor | None,
    hidden_weight: Tensor,
    cell: Tensor,
    cells: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `lstm_triton.backward` computes."""
    models, batch, tokens, width = cells.shape
    settings = _tiling(width)
    d_hidden, d_cell = (cells.new_zeros(models, batch, width) for _ in range(2))
    _lstm_wide_backward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, d_outputs, d_cells, hidden_weight, cell.contiguous(), cells, d_hidden, d_cell, batch, tokens,
        hidden_weight.stride(0), HAS_D_CELLS=d_cells is not None, PRECISION=precision, **settings,
    )  # fmt: skip
    return gates.flatten(1, 2).sum(1, dtype=cells.dtype), d_hidden, d_cell
