"""The fused GRU, of the family of the fused LSTM (`lstm_triton`), with the input projection as one product before it.

A program owns a tile of sequences of one model, keeps the model's recurrent weights on the chip and walks through the
tokens. The candidate's part of the hidden state is multiplied by the reset gate, so it is kept beside the gates.

Shapes: S stacked models, B sequences, T tokens, D width. Memory order of gates: (S, B, T, 3, D).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.lstm.lstm_triton import MAX_WIDTH, _gate, _tanh, _tiling
from latebloom.layers.product_triton import add_product, factor

__all__ = ["MAX_WIDTH", "backward", "forward"]


@triton.jit
def _gru_forward_kernel(
    gates, hidden_weight, bias, first_hidden, noise, outputs, before, inner, batch, tokens, weight_stride,
    D: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, NOISY: tl.constexpr, KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    units = tl.arange(0, UNITS)
    inputs = tl.arange(0, UNITS)
    real = (rows[:, None] < batch) & (units[None, :] < D)
    square = (inputs[:, None] < D) & (units[None, :] < D)
    sequences = model * batch + rows

    # [k, n]: what unit n's gate takes from unit k's output
    weight = hidden_weight + model * weight_stride + units[None, :] * D + inputs[:, None]
    gate = D * D
    shift = bias + model * 4 * D + units
    reset_bias = tl.load(shift, units < D, 0.0)[None, :]
    update_bias = tl.load(shift + D, units < D, 0.0)[None, :]
    candidate_bias = tl.load(shift + 2 * D, units < D, 0.0)[None, :]
    inner_bias = tl.load(shift + 3 * D, units < D, 0.0)[None, :]
    to_reset = factor(tl.load(weight, square, 0.0), PRECISION)
    to_update = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_candidate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)

    hidden = tl.load(first_hidden + sequences[:, None] * D + units[None, :], real, 0.0)
    gates += sequences[:, None] * tokens * 3 * D + units[None, :]
    place = sequences[:, None] * tokens * D + units[None, :]
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # The input projection of the next token is loaded while this token's gates are computed.
    reset_next = _gate(gates, real)
    update_next = _gate(gates + D, real)
    candidate_next = _gate(gates + 2 * D, real)
    for t in range(tokens):
        reset, update, candidate = reset_next + reset_bias, update_next + update_bias, candidate_next + candidate_bias
        ahead = real & (t < final)
        reset_next = _gate(gates + 3 * D, ahead)
        update_next = _gate(gates + 4 * D, ahead)
        candidate_next = _gate(gates + 5 * D, ahead)
        reset = tl.sigmoid(add_product(reset, hidden, to_reset, PRECISION))
        update = tl.sigmoid(add_product(update, hidden, to_update, PRECISION))
        from_hidden = add_product(tl.zeros([ROWS, UNITS], tl.float32) + inner_bias, hidden, to_candidate, PRECISION)
        candidate = _tanh(candidate + reset * from_hidden)
        if KEEP:
            tl.store(before + place, hidden, real)
            tl.store(inner + place, from_hidden, real)
            tl.store(gates, reset, real)
            tl.store(gates + D, update, real)
            tl.store(gates + 2 * D, candidate, real)
        hidden = candidate + update * (hidden - candidate)
        if NOISY:
            hidden += tl.load(noise + place, real, 0.0)
        tl.store(outputs + place, hidden, real)
        gates += 3 * D
        place += D


@triton.jit
def _gru_backward_kernel(
    gates, inner, d_outputs, hidden_weight, first_hidden, outputs, d_bias, d_first_hidden, batch, tokens, weight_stride,
    D: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
    to_reset = factor(tl.load(weight, square, 0.0), PRECISION)
    to_update = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_candidate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)

    state = sequences[:, None] * D + units[None, :]
    d_hidden = tl.zeros([ROWS, UNITS], tl.float32)
    d_reset_bias = tl.zeros([ROWS, UNITS], tl.float32)
    d_update_bias = tl.zeros([ROWS, UNITS], tl.float32)
    d_candidate_bias = tl.zeros([ROWS, UNITS], tl.float32)
    d_inner_bias = tl.zeros([ROWS, UNITS], tl.float32)
    last = (sequences[:, None] * tokens + tokens - 1) * D
    place = last + units[None, :]
    gates += 3 * last + units[None, :]
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # What the previous token needs is loaded while this token's gradients are computed.
    reset_next = _gate(gates, real)
    update_next = _gate(gates + D, real)
    candidate_next = _gate(gates + 2 * D, real)
    from_hidden_next = _gate(inner + place, real)
    d_output_next = tl.load(d_outputs + place, real, 0.0)
    hidden_next = tl.load(outputs + place - D, real & (final > 0), 0.0)
    for back in range(tokens):
        reset, update, candidate = reset_next, update_next, candidate_next
        from_hidden, hidden_before = from_hidden_next, hidden_next
        d_hidden += d_output_next
        if back == tokens - 1:
            hidden_before = tl.load(first_hidden + state, real, 0.0)
        ahead = real & (back < final)
        reset_next = _gate(gates - 3 * D, ahead)
        update_next = _gate(gates - 2 * D, ahead)
        candidate_next = _gate(gates - D, ahead)
        from_hidden_next = _gate(inner + place - D, ahead)
        d_output_next = tl.load(d_outputs + place - D, ahead, 0.0)
        hidden_next = tl.load(outputs + place - 2 * D, real & (back + 1 < final), 0.0)
        d_update = d_hidden * (hidden_before - candidate) * update * (1 - update)
        d_candidate = d_hidden * (1 - update) * (1 - candidate * candidate)
        d_reset = d_candidate * from_hidden * reset * (1 - reset)
        d_inner = d_candidate * reset
        tl.store(gates, d_reset, real)
        tl.store(gates + D, d_update, real)
        tl.store(gates + 2 * D, d_candidate, real)
        tl.store(inner + place, d_inner, real)
        d_reset_bias += d_reset
        d_update_bias += d_update
        d_candidate_bias += d_candidate
        d_inner_bias += d_inner
        d_hidden = add_product(d_hidden * update, d_reset, to_reset, PRECISION)
        d_hidden = add_product(d_hidden, d_update, to_update, PRECISION)
        d_hidden = add_product(d_hidden, d_inner, to_candidate, PRECISION)
        place -= D
        gates -= 3 * D
    tl.store(d_first_hidden + state, d_hidden, real)
    # One row per tile, summed afterwards in a fixed order; atomic additions would have no fixed order.
    d_bias += (model * tl.num_programs(0) + tl.program_id(0)) * 4 * D + units
    tl.store(d_bias, tl.sum(d_reset_bias, 0), units < D)
    tl.store(d_bias + D, tl.sum(d_update_bias, 0), units < D)
    tl.store(d_bias + 2 * D, tl.sum(d_candidate_bias, 0), units < D)
    tl.store(d_bias + 3 * D, tl.sum(d_inner_bias, 0), units < D)


def forward(
    gates: Tensor, hidden_weight: Tensor, bias: Tensor, hidden: Tensor, noise: Tensor | None, precision: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, the hidden state before each token, and the candidate's part of it, each (S, B, T, D).

    `gates` (S, B, T, 3D) holds the input projection and is overwritten with the activated gates. The bias (S, 4D) has
    those of the reset and update gates, of the candidate's input, and of its part of the hidden state. Without `keep`,
    for inference, the second and the third are empty.
    """
    models, batch, tokens, three_widths = gates.shape
    width = three_widths // 3
    outputs = hidden.new_empty(models, batch, tokens, width)
    before, inner = (gates.new_empty(outputs.shape if keep else 0) for _ in range(2))
    settings = _tiling(width, precision)
    _gru_forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, hidden_weight, bias.contiguous(), hidden.contiguous(), None if noise is None else noise.contiguous(),
        outputs, before, inner, batch, tokens, hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep,
        PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, before, inner


def backward(
    gates: Tensor, inner: Tensor, d_outputs: Tensor, hidden_weight: Tensor, hidden: Tensor, outputs: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the bias (S, 4D) and of the first state; `gates` and `inner` become their gradients."""
    models, batch, tokens, width = outputs.shape
    settings = _tiling(width, precision)
    tiles = triton.cdiv(batch, settings["ROWS"])
    d_bias, d_hidden = outputs.new_empty(models, tiles, 4 * width), outputs.new_empty(models, batch, width)
    _gru_backward_kernel[(tiles, models)](
        gates, inner, d_outputs, hidden_weight, hidden.contiguous(), outputs, d_bias, d_hidden, batch, tokens,
        hidden_weight.stride(0), PRECISION=precision, **settings,
    )  # fmt: skip
    return d_bias.sum(1), d_hidden
