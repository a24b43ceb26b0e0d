"""The fused sLSTM, of the family of the fused LSTM (`lstm_triton`), with a head of a model in the place of a model.

A program owns a tile of sequences of one head, keeps the head's recurrent weights on the chip and walks through the
tokens. The forward kernel overwrites the input's part of the gates with the activated gates, and the backward kernel
replaces those by the gates' gradients.

Shapes: S stacked models, B sequences, T tokens, D width, H heads, E = D / H units per head. Memory order of gates:
(S, B, T, 4, H, E).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.lstm.lstm_triton import _gate, _tanh, _tiling
from latebloom.layers.product_triton import add_product, factor, product


@triton.jit
def _slstm_forward_kernel(
    gates, recurrent, hidden, cell, normalizer, maximum, noise, outputs, cells, normalizers, closed, batch, tokens,
    weight_stride, D: tl.constexpr, HEADS: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, NOISY: tl.constexpr,
    KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = D * HEADS
    model, head = tl.program_id(1).to(tl.int64) // HEADS, tl.program_id(1) % HEADS
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    inputs = tl.arange(0, UNITS)
    real = (rows[:, None] < batch) & (units[None, :] < D)
    square = (inputs[:, None] < D) & (units[None, :] < D)
    sequences = model * batch + rows

    # [k, n]: what unit n's gate takes from unit k's output
    weight = recurrent + model * weight_stride + head * 4 * D * D + inputs[:, None] * 4 * D + units[None, :]
    to_input = factor(tl.load(weight, square, 0.0), PRECISION)
    to_forget = factor(tl.load(weight + D, square, 0.0), PRECISION)
    to_cell = factor(tl.load(weight + 2 * D, square, 0.0), PRECISION)
    to_output = factor(tl.load(weight + 3 * D, square, 0.0), PRECISION)

    state = sequences[:, None] * width + head * D + units[None, :]
    h = tl.load(hidden + state, real, 0.0)
    c = tl.load(cell + state, real, 0.0)
    n = tl.load(normalizer + state, real, 1.0)
    m = tl.load(maximum + state, real, 0.0)
    gates += sequences[:, None] * tokens * 4 * width + head * D + units[None, :]
    place = sequences[:, None] * tokens * width + head * D + units[None, :]
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # The input's part of the next token is loaded while this token's gates are computed.
    input_next, forget_next = _gate(gates, real), _gate(gates + width, real)
    cell_next, output_next = _gate(gates + 2 * width, real), _gate(gates + 3 * width, real)
    for t in range(tokens):
        i = add_product(input_next, h, to_input, PRECISION)
        f = add_product(forget_next, h, to_forget, PRECISION)
        z = _tanh(add_product(cell_next, h, to_cell, PRECISION))
        o = tl.sigmoid(add_product(output_next, h, to_output, PRECISION))
        ahead = real & (t < final)
        input_next, forget_next = _gate(gates + 4 * width, ahead), _gate(gates + 5 * width, ahead)
        cell_next, output_next = _gate(gates + 6 * width, ahead), _gate(gates + 7 * width, ahead)
        kept = m + tl.minimum(f, 0.0) - tl.log(1 + tl.exp(-tl.abs(f)))  # the logarithm of sigmoid(f)
        m = tl.maximum(i, kept)
        admitted = tl.exp(i - m)
        kept = tl.exp(kept - m)
        c = kept * c + admitted * z
        n = kept * n + admitted
        if NOISY:
            c += n * tl.load(noise + place, real, 0.0)
        h = o * c / n
        tl.store(outputs + place, h, real)
        if KEEP:
            tl.store(gates, admitted, real)
            tl.store(gates + width, kept, real)
            tl.store(gates + 2 * width, z, real)
            tl.store(gates + 3 * width, o, real)
            tl.store(cells + place, c, real)
            tl.store(normalizers + place, n, real)
            tl.store(closed + place, tl.sigmoid(-f), real)
        gates += 4 * width
        place += width
    tl.store(cell + state, c, real)
    tl.store(normalizer + state, n, real)
    tl.store(maximum + state, m, real)


@triton.jit
def _slstm_backward_kernel(
    gates, d_outputs, d_cell, d_normalizer, recurrent, hidden, cell, normalizer, noise, outputs, cells, normalizers,
    closed, d_recurrent, d_hidden, batch, tokens, weight_stride, D: tl.constexpr, HEADS: tl.constexpr,
    UNITS: tl.constexpr, ROWS: tl.constexpr, NOISY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = D * HEADS
    model, head = tl.program_id(1).to(tl.int64) // HEADS, tl.program_id(1) % HEADS
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    inputs = tl.arange(0, UNITS)
    real = (rows[:, None] < batch) & (units[None, :] < D)
    turned = (units[:, None] < D) & (rows[None, :] < batch)
    square = (inputs[:, None] < D) & (units[None, :] < D)
    sequences = model * batch + rows

    # [n, k]: what unit n's gate gives back to unit k's output
    weight = recurrent + model * weight_stride + head * 4 * D * D + units[None, :] * 4 * D + inputs[:, None]
    to_input = factor(tl.load(weight, square, 0.0), PRECISION)
    to_forget = factor(tl.load(weight + D, square, 0.0), PRECISION)
    to_cell = factor(tl.load(weight + 2 * D, square, 0.0), PRECISION)
    to_output = factor(tl.load(weight + 3 * D, square, 0.0), PRECISION)

    state = sequences[:, None] * width + head * D + units[None, :]
    dh = tl.zeros([ROWS, UNITS], tl.float32)
    dc = tl.load(d_cell + state, real, 0.0)
    dn = tl.load(d_normalizer + state, real, 0.0)
    d_to_input = tl.zeros([UNITS, UNITS], tl.float32)
    d_to_forget = tl.zeros([UNITS, UNITS], tl.float32)
    d_to_cell = tl.zeros([UNITS, UNITS], tl.float32)
    d_to_output = tl.zeros([UNITS, UNITS], tl.float32)
    last = (sequences * tokens + tokens - 1) * width + head * D
    place = last[:, None] + units[None, :]
    gates += ((sequences * tokens + tokens - 1) * 4 * width + head * D)[:, None] + units[None, :]
    across = last[None, :] + units[:, None]  # the same place, with the units in front
    c = tl.load(cells + place, real, 0.0)
    n = tl.load(normalizers + place, real, 1.0)
    for back in range(tokens):
        admitted, kept = _gate(gates, real), _gate(gates + width, real)
        z, o = _gate(gates + 2 * width, real), _gate(gates + 3 * width, real)
        if back == tokens - 1:
            c_before = tl.load(cell + state, real, 0.0)
            n_before = tl.load(normalizer + state, real, 0.0)
            h_before = tl.load(hidden + (sequences * width + head * D)[None, :] + units[:, None], turned, 0.0)
        else:
            c_before = tl.load(cells + place - width, real, 0.0)
            n_before = tl.load(normalizers + place - width, real, 1.0)
            h_before = tl.load(outputs + across - width, turned, 0.0)
        dh += tl.load(d_outputs + place, real, 0.0)
        ratio = c / n
        d_ratio = dh * o / n
        dc += d_ratio
        dn -= d_ratio * ratio
        if NOISY:
            dn += dc * tl.load(noise + place, real, 0.0)
        d_input = (dc * z + dn) * admitted
        d_forget = (dc * c_before + dn * n_before) * kept * tl.load(closed + place, real, 0.0)
        d_cell_gate = dc * admitted * (1 - z * z)
        d_output_gate = dh * ratio * o * (1 - o)
        dc *= kept
        dn *= kept
        tl.store(gates, d_input, real)
        tl.store(gates + width, d_forget, real)
        tl.store(gates + 2 * width, d_cell_gate, real)
        tl.store(gates + 3 * width, d_output_gate, real)
        d_to_input = add_product(d_to_input, h_before, d_input, PRECISION)
        d_to_forget = add_product(d_to_forget, h_before, d_forget, PRECISION)
        d_to_cell = add_product(d_to_cell, h_before, d_cell_gate, PRECISION)
        d_to_output = add_product(d_to_output, h_before, d_output_gate, PRECISION)
        dh = product(d_input, to_input, PRECISION)
        dh = add_product(dh, d_forget, to_forget, PRECISION)
        dh = add_product(dh, d_cell_gate, to_cell, PRECISION)
        dh = add_product(dh, d_output_gate, to_output, PRECISION)
        c = c_before
        n = n_before
        place -= width
        across -= width
        gates -= 4 * width
    tl.store(d_hidden + state, dh, real)
    tl.store(d_cell + state, dc, real)
    tl.store(d_normalizer + state, dn, real)
    # One matrix per tile, summed afterwards in a fixed order; atomic additions would have no fixed order.
    d_recurrent += (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * 4 * D * D
    d_recurrent += inputs[:, None] * 4 * D + units[None, :]
    tl.store(d_recurrent, d_to_input, square)
    tl.store(d_recurrent + D, d_to_forget, square)
    tl.store(d_recurrent + 2 * D, d_to_cell, square)
    tl.store(d_recurrent + 3 * D, d_to_output, square)


def forward(
    gates: Tensor, recurrent: Tensor, state: tuple[Tensor, ...], noise: Tensor | None, precision: str, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return outputs (S, B, T, D), the last cell state, normalizer and maximum, and what the backward pass needs.

    `gates` (S, B, T, 4D) holds the input's part and is overwritten with the activated gates. The recurrent weights are
    (S, H, E, 4E), the four parts of the first state (S, B, D).
    """
    models, batch, tokens, _ = gates.shape
    heads, size = recurrent.shape[1:3]
    outputs = state[0].new_empty(models, batch, tokens, heads * size)
    kept = tuple(outputs.new_empty(outputs.shape if keep else 0) for _ in range(3))
    last = tuple(part.clone() for part in state[1:])  # the kernel overwrites the first state with the last
    settings = _tiling(size, precision)
    # Multiplications and additions are not contracted, because the compiler does so differently with and without KEEP.
    _slstm_forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models * heads)](
        gates, recurrent, state[0], *last, noise, outputs, *kept, batch, tokens, recurrent.stride(0), HEADS=heads,
        NOISY=noise is not None, KEEP=keep, PRECISION=precision, enable_fp_fusion=False, **settings,
    )  # fmt: skip
    return outputs, last, kept


def backward(
    gates: Tensor, grads: Sequence[Tensor], recurrent: Tensor, state: Sequence[Tensor], noise: Tensor | None,
    outputs: Tensor, kept: tuple[Tensor, ...], precision: str,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return the gradients of the recurrent weights and of the first hidden state, cell state and normalizer.

    `grads` are those of the outputs and of the last cell state and normalizer; `gates` become their gradients.
    """
    models, batch, tokens, _ = outputs.shape
    heads, size = recurrent.shape[1:3]
    d_cell, d_normalizer = (grad.clone(memory_format=torch.contiguous_format) for grad in grads[1:])  # overwritten
    settings = _tiling(size, precision)
    tiles = triton.cdiv(batch, settings["ROWS"])
    d_recurrent = outputs.new_empty(models, heads, tiles, size, 4 * size)
    d_hidden = torch.empty_like(d_cell)
    _slstm_backward_kernel[(tiles, models * heads)](
        gates, grads[0].contiguous(), d_cell, d_normalizer, recurrent, *state[:3], noise, outputs, *kept, d_recurrent,
        d_hidden, batch, tokens, recurrent.stride(0), HEADS=heads, NOISY=noise is not None, PRECISION=precision,
        **settings,
    )  # fmt: skip
    return d_recurrent.sum(2), (d_hidden, d_cell, d_normalizer)
