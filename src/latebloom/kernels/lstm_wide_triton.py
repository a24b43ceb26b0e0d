"""The fused LSTM for widths whose recurrent weights do not fit on the chip at once.

As in `lstm_triton`, a program owns a tile of sequences of one model and walks through the tokens. Here it takes the
units in chunks, fetches their weights anew for every token (from the cache that all programs share), and hands the
state from token to token through memory.

Shapes: S stacked models, B sequences, T tokens, D width. Memory order of gates: (S, B, T, 4, D).
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.kernels.lstm_triton import _gate, _tanh
from latebloom.kernels.product_triton import add_product


@triton.jit
def _forward_kernel(
    gates, hidden_weight, bias, first_hidden, memory, noise, outputs, before, memories, batch, tokens, weight_stride,
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
            admit = _gate(at, real) + tl.load(shift, units < D, 0.0)[None, :]
            admit = add_product(admit, hidden, tl.load(tile, known, 0.0), PRECISION)
            keep = _gate(at + D, real) + tl.load(shift + D, units < D, 0.0)[None, :]
            keep = add_product(keep, hidden, tl.load(tile + gate, known, 0.0), PRECISION)
            candidate = _gate(at + 2 * D, real) + tl.load(shift + 2 * D, units < D, 0.0)[None, :]
            candidate = add_product(candidate, hidden, tl.load(tile + 2 * gate, known, 0.0), PRECISION)
            reveal = _gate(at + 3 * D, real) + tl.load(shift + 3 * D, units < D, 0.0)[None, :]
            reveal = add_product(reveal, hidden, tl.load(tile + 3 * gate, known, 0.0), PRECISION)
            admit, keep, reveal = tl.sigmoid(admit), tl.sigmoid(keep), tl.sigmoid(reveal)
            candidate = _tanh(candidate)
            state = memory + sequences[:, None] * D + units[None, :]
            remembered = keep * tl.load(state, real, 0.0) + admit * candidate
            if NOISY:
                remembered += tl.load(noise + place + units[None, :], real, 0.0)
            tl.store(state, remembered, real)
            tl.store(outputs + place + units[None, :], reveal * _tanh(remembered), real)
            if KEEP:
                tl.store(at, admit, real)
                tl.store(at + D, keep, real)
                tl.store(at + 2 * D, candidate, real)
                tl.store(at + 3 * D, reveal, real)
                tl.store(memories + place + units[None, :], remembered, real)
        tl.debug_barrier()  # the next token reads the outputs of all units


@triton.jit
def _backward_kernel(
    gates, d_outputs, d_memories, hidden_weight, first_memory, memories, d_hidden, d_memory, batch, tokens,
    weight_stride, D: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    HAS_D_MEMORIES: tl.constexpr, PRECISION: tl.constexpr,
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
                memory_before = tl.load(first_memory + state, real, 0.0)
            else:
                memory_before = tl.load(memories + place - D + units[None, :], real, 0.0)
            at = gates + 4 * place + units[None, :]
            admit, keep = _gate(at, real), _gate(at + D, real)
            candidate, reveal = _gate(at + 2 * D, real), _gate(at + 3 * D, real)
            shown = _tanh(tl.load(memories + place + units[None, :], real, 0.0))
            slope = tl.load(d_hidden + state, real, 0.0) + tl.load(d_outputs + place + units[None, :], real, 0.0)
            through = tl.load(d_memory + state, real, 0.0) + slope * reveal * (1 - shown * shown)
            if HAS_D_MEMORIES:
                through += tl.load(d_memories + place + units[None, :], real, 0.0)
            tl.store(at, through * candidate * admit * (1 - admit), real)
            tl.store(at + D, through * memory_before * keep * (1 - keep), real)
            tl.store(at + 2 * D, through * admit * (1 - candidate * candidate), real)
            tl.store(at + 3 * D, slope * shown * reveal * (1 - reveal), real)
            tl.store(d_memory + state, through * keep, real)
        tl.debug_barrier()  # a unit's output goes into the gates of all units
        for start in range(0, D, CHUNK):
            units = start + tl.arange(0, CHUNK)
            known = (inputs[:, None] < D) & (units[None, :] < D)
            at = gates + 4 * place + inputs[None, :]
            tile = weight + units[None, :]
            slope = tl.zeros([ROWS, CHUNK], tl.float32)
            for which in range(4):
                d_gate = _gate(at + which * D, whole)
                slope = add_product(slope, d_gate, tl.load(tile + which * gate, known, 0.0), PRECISION)
            real = (rows[:, None] < batch) & (units[None, :] < D)
            tl.store(d_hidden + sequences[:, None] * D + units[None, :], slope, real)
        tl.debug_barrier()


def _tiling(width: int) -> dict[str, int]:
    """How a kernel divides its work; measured on an H200 at width 128."""
    units = triton.next_power_of_2(width)
    chunk = 64 if units <= 128 else 32
    return {"D": width, "UNITS": units, "CHUNK": chunk, "ROWS": 32, "num_warps": 8, "num_stages": 1}


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
    """As `lstm_triton.forward`."""
    models, batch, tokens, four_widths = gates.shape
    width = four_widths // 4
    outputs = hidden.new_empty(models, batch, tokens, width)
    before = gates.new_empty(outputs.shape if keep else 0)
    memories = torch.empty_like(outputs) if keep else outputs.new_empty(0)
    last = memory.contiguous().clone()
    settings = _tiling(width)
    _forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, hidden_weight, bias.contiguous(), hidden.contiguous(), last,
        None if noise is None else noise.contiguous(), outputs, before, memories, batch, tokens,
        hidden_weight.stride(0), NOISY=noise is not None, KEEP=keep, PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, before, memories if keep else last[:, :, None]


def backward(
    gates: Tensor,
    d_outputs: Tensor,
    d_memories: Tensor | None,
    hidden_weight: Tensor,
    memory: Tensor,
    memories: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `lstm_triton.backward`."""
    models, batch, tokens, width = memories.shape
    settings = _tiling(width)
    d_hidden, d_memory = (memories.new_zeros(models, batch, width) for _ in range(2))
    _backward_kernel[(triton.cdiv(batch, settings["ROWS"]), models)](
        gates, d_outputs, d_memories, hidden_weight, memory.contiguous(), memories, d_hidden, d_memory, batch, tokens,
        hidden_weight.stride(0), HAS_D_MEMORIES=d_memories is not None, PRECISION=precision, **settings,
    )  # fmt: skip
    return gates.flatten(1, 2).sum(1, dtype=memories.dtype), d_hidden, d_memory
