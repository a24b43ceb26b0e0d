"""The fused GRU for widths whose recurrent weights do not fit on the chip at once.

As in `lstm_wide_triton`, a program takes the units in chunks, loads their weights again for every token, and passes the
state from token to token through memory.

Shapes: S stacked models, B sequences, T tokens, D width. Memory order of gates: (S, B, T, 3, D).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.lstm.lstm_triton import _gate, _tanh
from latebloom.layers.lstm.lstm_wide_triton import _tiling
from latebloom.layers.product_triton import add_product


@triton.jit
def _gru_wide_forward_kernel(
    gates, hidden_weight, bias, first_hidden, noise, outputs, before, inner, batch, tokens, weight_stride,
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
            at = gates + 3 * place + units[None, :]
            reset = _gate(at, real) + tl.load(shift, units < D, 0.0)[None, :]
            reset = tl.sigmoid(add_product(reset, hidden, tl.load(tile, known, 0.0), PRECISION))
            update = _gate(at + D, real) + tl.load(shift + D, units < D, 0.0)[None, :]
            update = tl.sigmoid(add_product(update, hidden, tl.load(tile + gate, known, 0.0), PRECISION))
            from_hidden = tl.zeros([ROWS, CHUNK], tl.float32) + tl.load(shift + 3 * D, units < D, 0.0)[None, :]
            from_hidden = add_product(from_hidden, hidden, tl.load(tile + 2 * gate, known, 0.0), PRECISION)
            candidate = _gate(at + 2 * D, real) + tl.load(shift + 2 * D, units < D, 0.0)[None, :]
            candidate = _tanh(candidate + reset * from_hidden)
            if t == 0:
                hidden_before = tl.load(first_hidden + sequences[:, None] * D + units[None, :], real, 0.0)
            else:
                hidden_before = tl.load(outputs + place - D + units[None, :], real, 0.0)
            new_hidden = candidate + update * (hidden_before - candidate)
            if NOISY:
                new_hidden += tl.load(noise + place + units[None, :], real, 0.0)
            tl.store(outputs + place + units[None, :], new_hidden, real)
            if KEEP:
                tl.store(at, reset, real)
                tl.store(at + D, update, real)
                tl.store(at + 2 * D, candidate, real)
                tl.store(inner + place + units[None, :], from_hidden, real)
        tl.debug_barrier()  # the next token reads the outputs of all units


@triton.jit
def _gru_wide_backward_kernel(
    gates, inner, d_outputs, hidden_weight, first_hidden, outputs, d_hidden, batch, tokens, weight_stride,
    D: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
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
            at = gates + 3 * place + units[None, :]
            reset, update, candidate = _gate(at, real), _gate(at + D, real), _gate(at + 2 * D, real)
            d_output = tl.load(d_hidden + state, real, 0.0) + tl.load(d_outputs + place + units[None, :], real, 0.0)
            if back == tokens - 1:
                hidden_before = tl.load(first_hidden + state, real, 0.0)
            else:
                hidden_before = tl.load(outputs + place - D + units[None, :], real, 0.0)
            d_candidate = d_output * (1 - update) * (1 - candidate * candidate)
            from_hidden = _gate(inner + place + units[None, :], real)
            tl.store(at, d_candidate * from_hidden * reset * (1 - reset), real)
            tl.store(at + D, d_output * (hidden_before - candidate) * update * (1 - update), real)
            tl.store(at + 2 * D, d_candidate, real)
            tl.store(inner + place + units[None, :], d_candidate * reset, real)
            tl.store(d_hidden + state, d_output * update, real)
        tl.debug_barrier()  # a unit's output goes into the gates of all units
        for start in range(0, D, CHUNK):
            units = start + tl.arange(0, CHUNK)
            real = (rows[:, None] < batch) & (units[None, :] < D)
            known = (inputs[:, None] < D) & (units[None, :] < D)
            tile = weight + units[None, :]
            state = sequences[:, None] * D + units[None, :]
            d_output = tl.load(d_hidden + state, real, 0.0)
            for which in range(2):
                d_gate = _gate(gates + 3 * place + which * D + inputs[None, :], whole)
                d_output = add_product(d_output, d_gate, tl.load(tile + which * gate, known, 0.0), PRECISION)
            d_inner = _gate(inner + place + inputs[None, :], whole)
            d_output = add_product(d_output, d_inner, tl.load(tile + 2 * gate, known, 0.0), PRECISION)
            tl.store(d_hidden + state, d_output, real)
        tl.debug_barrier()


def forward(
    gates: Tensor, hidden_weight: Tensor, bias: Tensor, hidden: Tensor, noise: Tensor | None, precision: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `gru_triton.forward` computes."""
    models, batch, tokens, three_widths = gates.shape
    width = three_widths // 3
    outputs = hidden.new_empty(models, batch, tokens, width)
    before, inner = (gates.new_empty(outputs.shape if keep else 0) for _ in range(2))
    settings = _tiling(width)
    _gru_wide_forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, hidden_weight, bias.contiguous(), hidden.contiguous(), None if noise is None else noise.contiguous(),
        outputs, before, inner, batch, tokens, hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep,
        PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, before, inner


def backward(
    gates: Tensor, inner: Tensor, d_outputs: Tensor, hidden_weight: Tensor, hidden: Tensor, outputs: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute what `gru_triton.backward` computes."""
    models, batch, tokens, width = outputs.shape
    settings = _tiling(width)
    d_hidden = outputs.new_zeros(models, batch, width)
    _gru_wide_backward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, inner, d_outputs, hidden_weight, hidden.contiguous(), outputs, d_hidden, batch, tokens,
        hidden_weight.stride(0), PRECISION=precision, **settings,
    )  # fmt: skip
    sums = (part.flatten(1, 2).sum(1, dtype=outputs.dtype) for part in (gates, inner))
    return torch.cat(tuple(sums), dim=1), d_hidden
