"""The fused LSTM: all stacked models in one launch, all tokens inside it, the recurrent weights on the chip.

A program owns a tile of sequences of one model and walks through the tokens; nothing but the model's own weights is
shared, so programs never wait for each other and the result does not depend on their order. What the forward kernel
needs to keep it writes over its input: the input's share of the gates becomes the activated gates, and the backward
kernel turns those into the gates' gradients.

Shapes: S stacked models, B sequences, T tokens, D width. Memory order of gates: (S, B, T, 4, D).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.kernels.product_triton import add_product, factor, product


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gate(place, real):
    """A gate as it was kept: in float32, or in half of that."""
    return tl.load(place, real, 0.0).to(tl.float32)


@triton.jit
def _forward_kernel(
    gates,
    hidden_weight,
    bias,
    first_hidden,
    first_memory,
    noise,
    outputs,
    before,
    memories,
    batch,
    tokens,
    weight_stride,
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

    # [k, n]: what unit n's gate takes from unit k's output
    weight = hidden_weight + model * weight_stride + units[None, :] * D + inputs[:, None]
    gate = D * D
    shift = bias + model * 4 * D + units
    admit_shift = tl.load(shift, units < D, 0.0)[None, :]
    keep_shift = tl.load(shift + D, units < D, 0.0)[None, :]
    candidate_shift = tl.load(shift + 2 * D, units < D, 0.0)[None, :]
    reveal_shift = tl.load(shift + 3 * D, units < D, 0.0)[None, :]
    to_admit = factor(tl.load(weight, square, 0.0), PRECISION)
    to_keep = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_candidate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)
    to_reveal = factor(tl.load(weight + 3 * gate, square, 0.0), PRECISION)

    state = sequences[:, None] * D + units[None, :]
    hidden = tl.load(first_hidden + state, real, 0.0)
    memory = tl.load(first_memory + state, real, 0.0)
    gates += sequences[:, None] * tokens * 4 * D + units[None, :]
    place = sequences[:, None] * tokens * D + units[None, :]
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # The input's share of the next token's gates is fetched while this token's are computed.
    admit_next = _gate(gates, real)
    keep_next = _gate(gates + D, real)
    candidate_next = _gate(gates + 2 * D, real)
    reveal_next = _gate(gates + 3 * D, real)
    for t in range(tokens):
        admit, keep = admit_next + admit_shift, keep_next + keep_shift
        candidate, reveal = candidate_next + candidate_shift, reveal_next + reveal_shift
        ahead = real & (t < final)
        admit_next = _gate(gates + 4 * D, ahead)
        keep_next = _gate(gates + 5 * D, ahead)
        candidate_next = _gate(gates + 6 * D, ahead)
        reveal_next = _gate(gates + 7 * D, ahead)
        admit = tl.sigmoid(add_product(admit, hidden, to_admit, PRECISION))
        keep = tl.sigmoid(add_product(keep, hidden, to_keep, PRECISION))
        candidate = _tanh(add_product(candidate, hidden, to_candidate, PRECISION))
        reveal = tl.sigmoid(add_product(reveal, hidden, to_reveal, PRECISION))
        if KEEP:
            tl.store(before + place, hidden, real)
            tl.store(gates, admit, real)
            tl.store(gates + D, keep, real)
            tl.store(gates + 2 * D, candidate, real)
            tl.store(gates + 3 * D, reveal, real)
        memory = keep * memory + admit * candidate
        if NOISY:
            memory += tl.load(noise + place, real, 0.0)
        hidden = reveal * _tanh(memory)
        tl.store(outputs + place, hidden, real)
        if KEEP:
            tl.store(memories + place, memory, real)
        gates += 4 * D
        place += D
    if not KEEP:  # only the last one is asked for
        tl.store(memories + state, memory, real)


@triton.jit
def _backward_kernel(
    gates,
    d_outputs,
    d_memories,
    hidden_weight,
    first_memory,
    memories,
    d_bias,
    d_first_hidden,
    d_first_memory,
    batch,
    tokens,
    weight_stride,
    D: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_D_MEMORIES: tl.constexpr,
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
    to_admit = factor(tl.load(weight, square, 0.0), PRECISION)
    to_keep = factor(tl.load(weight + gate, square, 0.0), PRECISION)
    to_candidate = factor(tl.load(weight + 2 * gate, square, 0.0), PRECISION)
    to_reveal = factor(tl.load(weight + 3 * gate, square, 0.0), PRECISION)

    state = sequences[:, None] * D + units[None, :]
    d_hidden = tl.zeros([ROWS, UNITS], tl.float32)
    d_memory = tl.zeros([ROWS, UNITS], tl.float32)
    d_admit_shift = tl.zeros([ROWS, UNITS], tl.float32)
    d_keep_shift = tl.zeros([ROWS, UNITS], tl.float32)
    d_candidate_shift = tl.zeros([ROWS, UNITS], tl.float32)
    d_reveal_shift = tl.zeros([ROWS, UNITS], tl.float32)
    last = (sequences[:, None] * tokens + tokens - 1) * D
    place = last + units[None, :]
    gates += 4 * last + units[None, :]
    memory = tl.load(memories + place, real, 0.0)
    final = tl.zeros([ROWS, 1], tl.int32) + tokens - 1
    # What the token before needs is fetched while this token's gradients are computed.
    admit_next = _gate(gates, real)
    keep_next = _gate(gates + D, real)
    candidate_next = _gate(gates + 2 * D, real)
    reveal_next = _gate(gates + 3 * D, real)
    slope_next = tl.load(d_outputs + place, real, 0.0)
    memory_next = tl.load(memories + place - D, real & (final > 0), 0.0)
    for back in range(tokens):
        admit, keep, candidate, reveal = admit_next, keep_next, candidate_next, reveal_next
        memory_before = memory_next
        d_hidden += slope_next
        if back == tokens - 1:
            memory_before = tl.load(first_memory + state, real, 0.0)
        ahead = real & (back < final)
        admit_next = _gate(gates - 4 * D, ahead)
        keep_next = _gate(gates - 3 * D, ahead)
        candidate_next = _gate(gates - 2 * D, ahead)
        reveal_next = _gate(gates - D, ahead)
        slope_next = tl.load(d_outputs + place - D, ahead, 0.0)
        memory_next = tl.load(memories + place - 2 * D, real & (back + 1 < final), 0.0)
        shown = _tanh(memory)
        if HAS_D_MEMORIES:
            d_memory += tl.load(d_memories + place, real, 0.0)
        d_memory += d_hidden * reveal * (1 - shown * shown)
        d_reveal = d_hidden * shown * reveal * (1 - reveal)
        d_admit = d_memory * candidate * admit * (1 - admit)
        d_candidate = d_memory * admit * (1 - candidate * candidate)
        d_keep = d_memory * memory_before * keep * (1 - keep)
        d_memory *= keep
        tl.store(gates, d_admit, real)
        tl.store(gates + D, d_keep, real)
        tl.store(gates + 2 * D, d_candidate, real)
        tl.store(gates + 3 * D, d_reveal, real)
        d_admit_shift += d_admit
        d_keep_shift += d_keep
        d_candidate_shift += d_candidate
        d_reveal_shift += d_reveal
        d_hidden = product(d_admit, to_admit, PRECISION)
        d_hidden = add_product(d_hidden, d_keep, to_keep, PRECISION)
        d_hidden = add_product(d_hidden, d_candidate, to_candidate, PRECISION)
        d_hidden = add_product(d_hidden, d_reveal, to_reveal, PRECISION)
        memory = memory_before
        place -= D
        gates -= 4 * D
    tl.store(d_first_hidden + state, d_hidden, real)
    tl.store(d_first_memory + state, d_memory, real)
    # A row for each tile, added up afterwards in a fixed order: adding atomically would depend on who comes first.
    d_bias += (model * tl.num_programs(0) + tl.program_id(0)) * 4 * D + units
    tl.store(d_bias, tl.sum(d_admit_shift, 0), units < D)
    tl.store(d_bias + D, tl.sum(d_keep_shift, 0), units < D)
    tl.store(d_bias + 2 * D, tl.sum(d_candidate_shift, 0), units < D)
    tl.store(d_bias + 3 * D, tl.sum(d_reveal_shift, 0), units < D)


MAX_WIDTH = 64
"""The recurrent weights of wider models do not fit on the chip."""


def _tiling(width: int, precision: str) -> dict[str, int]:
    """How a kernel divides its work; measured on an H200."""
    rows, warps = (32, 8) if precision == "tf32x3" else (16, 4)
    return {"D": width, "UNITS": max(16, triton.next_power_of_2(width)), "ROWS": rows, "num_warps": warps}


def forward(
    gates: Tensor,
    hidden_weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    memory: Tensor,
    noise: Tensor | None,
    precision: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (S, B, T, D), each token's output before (S, B, T, D), and memories (S, B, T, D).

    `gates` (S, B, T, 4D) comes as the input's share and goes as the activated gates. Without `keep`, for use without
    a way back, the second is empty and the third is the last memory alone (S, B, 1, D).
    """
    models, batch, tokens, four_widths = gates.shape
    width = four_widths // 4
    outputs = hidden.new_empty(models, batch, tokens, width)
    before = gates.new_empty(outputs.shape if keep else 0)  # a factor of products, and no more exact than the gates
    memories = torch.empty_like(outputs) if keep else outputs.new_empty(models, batch, 1, width)
    settings = _tiling(width, precision)
    grid = (triton.cdiv(batch, settings["ROWS"]), models)
    _forward_kernel[grid](
        gates, hidden_weight, bias.contiguous(), hidden.contiguous(), memory.contiguous(),
        None if noise is None else noise.contiguous(), outputs, before, memories, batch, tokens,
        hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep, PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, before, memories


def backward(
    gates: Tensor,
    d_outputs: Tensor,
    d_memories: Tensor | None,
    hidden_weight: Tensor,
    memory: Tensor,
    memories: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the bias (S, 4D) and of the first state (S, B, D) twice; `gates` become their own gradients."""
    models, batch, tokens, width = memories.shape
    settings = _tiling(width, precision)
    tiles = triton.cdiv(batch, settings["ROWS"])
    d_bias = memories.new_empty(models, tiles, 4 * width)
    d_hidden, d_memory = (memories.new_empty(models, batch, width) for _ in range(2))
    _backward_kernel[(tiles, models)](
        gates, d_outputs, d_memories, hidden_weight, memory.contiguous(), memories, d_bias, d_hidden, d_memory, batch,
        tokens, hidden_weight.stride(0), HAS_D_MEMORIES=d_memories is not None, PRECISION=precision, **settings,
    )  # fmt: skip
    return d_bias.sum(1), d_hidden, d_memory
