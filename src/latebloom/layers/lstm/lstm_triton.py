"""The fused LSTM: all stacked models in one launch, all tokens inside it, the weights on the chip.

A program of the first two kernels owns a tile of sequences of one model and walks through the tokens; nothing but the
model's own weights is shared, so programs never wait for each other and the result does not depend on their order. The
forward kernel keeps the activated gates, and the backward kernel replaces them by the gates' gradients. What does not
depend on the order of tokens, the gradients of the input and of the weights, is left to a third kernel, which reads the
gates' gradients once for all of them.

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
    x, input_weight, hidden_weight, bias, first_hidden, first_cell, noise, outputs, gates, cells, batch, tokens,
    input_stride, hidden_stride, D: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, NOISY: tl.constexpr,
    KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # The input's part of the next token's gates is computed while this token's outputs are: only the hidden state's
    # part has to wait for them. The input itself is loaded one token earlier still.
    token = tl.load(x + place, real, 0.0)
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
        gates += 4 * D
        place += D
    if not KEEP:  # only the last cell state is needed
        tl.store(cells + state, cell, real)


@triton.jit(do_not_specialize=["one"])
def _lstm_backward_kernel(
    gates, d_outputs, d_cells, hidden_weight, first_cell, cells, d_first_hidden, d_first_cell, batch, tokens,
    hidden_stride, one, D: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, HAS_D_CELLS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    inputs = tl.arange(0, UNITS)
    real = (rows[:, None] < batch) & (units[None, :] < D)
    square = (inputs[:, None] < D) & (units[None, :] < D)
    sequences = model * batch + rows

    # [n, k]: what unit n's gate gives back to unit k's output. `one` is 1, the distance between neighbours k: the
    # compiler would put them side by side on the chip if it knew, and the tensor cores' loads want neighbours n there.
    weight = hidden_weight + model * hidden_stride + inputs[:, None] * D + units[None, :] * one
    gate = D * D
    to_input_gate = factor(tl.load(weight, square, 0.0), PRECISION)
    to_forget_gate = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_cell_gate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)
    to_output_gate = factor(tl.load(weight + 3 * gate, square, 0.0), PRECISION)

    state = sequences[:, None] * D + units[None, :]
    d_hidden = tl.zeros([ROWS, UNITS], tl.float32)
    d_cell = tl.zeros([ROWS, UNITS], tl.float32)
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
        # Two sums at once rather than one after the other, because the next token waits for them.
        d_hidden = add_product(
            product(d_input_gate, to_input_gate, PRECISION), d_forget_gate, to_forget_gate, PRECISION
        )
        d_rest = add_product(product(d_cell_gate, to_cell_gate, PRECISION), d_output_gate, to_output_gate, PRECISION)
        d_hidden += d_rest
        cell = cell_before
        place -= D
        gates -= 4 * D
    tl.store(d_first_hidden + state, d_hidden, real)
    tl.store(d_first_cell + state, d_cell, real)


@triton.jit
def _rows(
    d_gates, x, first_hidden, outputs, zero, model, start, end, count, tokens, D: tl.constexpr, UNITS: tl.constexpr,
    GATES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Load the gates' gradients of some tokens, the input, and the hidden state before each of them."""
    units, columns, rows = tl.arange(0, UNITS) + zero, tl.arange(0, GATES) + zero, start + tl.arange(0, ROWS)
    real = (rows[:, None] < end) & (units[None, :] < D)
    at = model * count + rows
    place = at[:, None] * D + units[None, :]
    known = (rows[:, None] < end) & (columns[None, :] < 4 * D)
    d_gate = _gate(d_gates + at[:, None] * 4 * D + columns[None, :], known)
    first = first_hidden + (at // tokens)[:, None] * D + units[None, :]
    before = tl.load(tl.where((rows % tokens == 0)[:, None], first, outputs + place - D), real, 0.0)
    return d_gate, tl.load(x + place, real, 0.0), before


@triton.jit(do_not_specialize=["zero"])
def _lstm_gradient_kernel(
    d_gates, x, first_hidden, outputs, input_weight, d_x, d_input_weight, d_hidden_weight, d_bias, count, tokens, part,
    input_stride, zero, D: tl.constexpr, UNITS: tl.constexpr, GATES: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    units, columns = tl.arange(0, UNITS), tl.arange(0, GATES)
    known = (columns[:, None] < 4 * D) & (units[None, :] < D)
    weight = tl.load(input_weight + model * input_stride + columns[:, None] * D + units[None, :], known, 0.0)
    weight = factor(weight, PRECISION)
    from_input = tl.zeros([GATES, UNITS], tl.float32)
    from_hidden = tl.zeros([GATES, UNITS], tl.float32)
    total = tl.zeros([GATES], tl.float32)
    begin = tl.program_id(0) * part
    end = tl.minimum(count, begin + part)
    # The next rows are loaded while these are computed. `zero` is 0: the compiler would give four neighbouring columns
    # to a thread if it knew that they are aligned, but the tensor cores take neighbouring rows from the chip, and so a
    # thread that has the rows of one column writes them there at once.
    d_gate_next, token_next, before_next = _rows(
        d_gates, x, first_hidden, outputs, zero, model, begin, end, count, tokens, D, UNITS, GATES, ROWS
    )
    for start in range(begin, end, ROWS):
        d_gate, token, before = d_gate_next, token_next, before_next
        d_gate_next, token_next, before_next = _rows(
            d_gates, x, first_hidden, outputs, zero, model, start + ROWS, end, count, tokens, D, UNITS, GATES, ROWS
        )
        turned = tl.trans(d_gate)
        from_input = add_product(from_input, turned, token, PRECISION)
        from_hidden = add_product(from_hidden, turned, before, PRECISION)
        total += tl.sum(d_gate, 0)
        # [k, row]: turned, because the larger tensor cores' products have at least 64 rows
        d_token = product(tl.trans(weight), turned, PRECISION)
        rows = start + tl.arange(0, ROWS)
        place = (model * count + rows[:, None]) * D + units[None, :] + zero
        tl.store(d_x + place, tl.trans(d_token), (rows[:, None] < end) & (units[None, :] < D))
    # One sum per part, added up afterwards in a fixed order; atomic additions would have no fixed order.
    sums = model * tl.num_programs(0) + tl.program_id(0)
    place = sums * 4 * D * D + columns[:, None] * D + units[None, :]
    tl.store(d_input_weight + place, from_input, known)
    tl.store(d_hidden_weight + place, from_hidden, known)
    tl.store(d_bias + sums * 4 * D + columns, total, columns < 4 * D)


MAX_WIDTH = 64
"""The weights of wider models do not fit on the chip."""


def _tiling(width: int, precision: str) -> dict[str, int]:
    """Return the tile sizes that were fastest on an H200 for a kernel with the recurrent weights alone."""
    rows, warps = (32, 8) if precision == "tf32x3" else (16, 4)
    return {"D": width, "UNITS": max(16, triton.next_power_of_2(width)), "ROWS": rows, "num_warps": warps}


def _forward_tiles(models: int, batch: int, width: int, precision: str) -> dict[str, int]:
    units = max(16, triton.next_power_of_2(width))
    # Where the weights leave room for one program, its sequences share what is read of them. A few models leave
    # multiprocessors free, and small tiles are sooner done.
    alone = units == 64 and precision != "tf32x3" and models * triton.cdiv(batch, 16) > PROGRAMS
    rows = 32 if alone else 16
    return {"D": width, "UNITS": units, "ROWS": rows, "num_warps": max(4, units // 8)}  # a warp's product has 8 units


def _backward_tiles(width: int) -> dict[str, int]:
    units = max(16, triton.next_power_of_2(width))
    return {"D": width, "UNITS": units, "ROWS": 16, "num_warps": max(4, units // 8)}


def _gradient_tiles(width: int, precision: str) -> dict[str, int]:
    units, rows = max(16, triton.next_power_of_2(width)), 16 if precision == "tf32x3" else 32
    return {"D": width, "UNITS": units, "GATES": 4 * units, "ROWS": rows, "num_warps": 8, "num_stages": 1}


PROGRAMS = 132
"""The multiprocessors of an H200, each of which has room for one program with both weights."""


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs (S, B, T, D), cell states (S, B, T, D), and the activated gates (S, B, T, 4D).

    Without `keep`, for inference, the second is the last cell state alone (S, B, 1, D) and the third is empty.
    """
    models, batch, tokens, width = x.shape
    outputs = torch.empty_like(x)
    cells = x.new_empty(models, batch, tokens if keep else 1, width)
    # In bf16, what is saved for the backward pass takes half of the memory and bandwidth.
    kind = torch.bfloat16 if precision == "bf16" else x.dtype
    gates = x.new_empty((models, batch, tokens, 4 * width) if keep else 0, dtype=kind)
    settings = _forward_tiles(models, batch, width, precision)
    _lstm_forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        x, input_weight, hidden_weight, bias.contiguous(), hidden.contiguous(), cell.contiguous(),
        None if noise is None else noise.contiguous(), outputs, gates, cells, batch, tokens, input_weight.stride(0),
        hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep, PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, cells, gates


def backward(
    gates: Tensor,
    d_outputs: Tensor,
    d_cells: Tensor | None,
    hidden_weight: Tensor,
    cell: Tensor,
    cells: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both first states (S, B, D); `gates` become their gradients."""
    models, batch, tokens, width = cells.shape
    d_hidden, d_cell = (cells.new_empty(models, batch, width) for _ in range(2))
    settings = _backward_tiles(width)
    _lstm_backward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, d_outputs, d_cells, hidden_weight, cell.contiguous(), cells, d_hidden, d_cell, batch, tokens,
        hidden_weight.stride(0), 1, HAS_D_CELLS=d_cells is not None, PRECISION=precision, **settings,
    )  # fmt: skip
    return d_hidden, d_cell


def gradients(
    d_gates: Tensor, x: Tensor, hidden: Tensor, outputs: Tensor, input_weight: Tensor, precision: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the input (S, B, T, D), of both weights (S, 4D, D), and of the bias (S, 4D)."""
    models, batch, tokens, width = x.shape
    settings, count = _gradient_tiles(width, precision), batch * tokens
    rows = settings["ROWS"]
    parts = max(1, min(PROGRAMS // models, triton.cdiv(count, 2 * rows)))  # enough to keep all multiprocessors busy
    part = triton.cdiv(count, parts * rows) * rows
    parts = triton.cdiv(count, part)
    d_x, d_bias = torch.empty_like(x), x.new_empty(models, parts, 4 * width)
    d_input_weight, d_hidden_weight = (x.new_empty(models, parts, 4 * width, width) for _ in range(2))
    _lstm_gradient_kernel[(parts, models)](
        d_gates, x, hidden.contiguous(), outputs, input_weight, d_x, d_input_weight, d_hidden_weight, d_bias, count,
        tokens, part, input_weight.stride(0), 0, PRECISION=precision, **settings,
    )  # fmt: skip
    if parts == 1:
        return d_x, d_input_weight[:, 0], d_hidden_weight[:, 0], d_bias[:, 0]
    return d_x, d_input_weight.sum(1), d_hidden_weight.sum(1), d_bias.sum(1)
