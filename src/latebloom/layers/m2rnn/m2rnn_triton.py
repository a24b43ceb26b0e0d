"""The fused M²RNN.

A program owns a tile of sequences of one head of one model, keeps their states and the head's weight on the chip and
walks through the tokens. For the backward pass the forward kernel stores the state before each token, from which the
backward kernel computes the candidate again.

Shapes: S stacked models, B sequences, T tokens, H heads, K key size, V value size. Stored states are
(S, H, T, B, K, V), so that the states of a tile of sequences are adjacent.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.lstm.lstm_triton import _tanh
from latebloom.layers.product_triton import add_product, factor

FORWARD_TILE = 1024
"""State elements of a program of the forward kernel: it owns as many sequences, at least one."""
BACKWARD_TILE = 512
"""The same for the backward kernel, which keeps more on the chip."""
BACKWARD_REGISTERS = 168
"""Registers per thread of the backward kernel with values of up to 16: 12 programs run on a multiprocessor at once."""
STRIDES = ["query_stride", "key_stride", "value_stride"]
"""Triton must not compile a kernel for the alignment of these: it would sum the length of a key in another order."""


@triton.jit
def _unit(k):
    """Return keys (B, K) divided by their lengths, and the inverse lengths (B, 1)."""
    inverse = 1 / tl.maximum(tl.sqrt(tl.sum(k * k, axis=1)), 1e-12)  # as in torch.nn.functional.normalize
    return k * inverse[:, None], inverse[:, None]


@triton.jit
def _candidate(h, k, v, weight, PRECISION: tl.constexpr):
    """Return tanh(H W + k v^T) for a tile of states (B, K, V)."""
    added = tl.reshape(k[:, :, None] * v[:, None, :], [h.shape[0] * h.shape[1], h.shape[2]])
    moved = add_product(added, tl.reshape(h, [h.shape[0] * h.shape[1], h.shape[2]]), weight, PRECISION)
    return tl.reshape(_tanh(moved), [h.shape[0], h.shape[1], h.shape[2]])


@triton.jit(do_not_specialize=STRIDES)
def _m2rnn_forward_kernel(
    query, key, value, forget, noise, weight, first, outputs, states, last, batch, tokens, query_stride, key_stride,
    value_stride, weight_stride, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, KEYS: tl.constexpr,
    VALUES: tl.constexpr, ROWS: tl.constexpr, NOISY: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    stack = tl.program_id(1).to(tl.int64)
    model, head = stack // HEADS, stack % HEADS
    start = tl.program_id(0) * ROWS
    rows, keys, values, inputs = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES), tl.arange(0, VALUES)
    real_row = start + rows < batch
    real_key = real_row[:, None] & (keys[None, :] < K)
    real_value = real_row[:, None] & (values[None, :] < V)
    real = real_key[:, :, None] & (values[None, None, :] < V)
    w = weight + model * weight_stride + head * V * V + inputs[:, None] * V + values[None, :]
    w = factor(tl.load(w, (inputs[:, None] < V) & (values[None, :] < V), 0.0), PRECISION)

    sequence = model * batch + start  # the first of the tile
    within = keys[None, :, None] * V + values[None, None, :]
    place = (sequence * HEADS + head) * K * V + rows[:, None, None] * HEADS * K * V + within
    h = tl.load(first + place, real, 0.0)
    # Scalar pointers advance from token to token, with one offset per element; pointers per element cost registers.
    token = sequence * tokens
    query += token * query_stride + head * K
    key += token * key_stride + head * K
    value += token * value_stride + head * V
    forget += token * HEADS + head
    by_value = (token * HEADS + head) * V
    states += (stack * tokens * batch + start) * K * V
    queries_at = rows[:, None] * tokens * query_stride + keys[None, :]
    keys_at = rows[:, None] * tokens * key_stride + keys[None, :]
    values_at = rows[:, None] * tokens * value_stride + values[None, :]
    outputs_at = rows[:, None] * tokens * HEADS * V + values[None, :]  # and noise
    states_at = rows[:, None, None] * K * V + within
    for _ in range(tokens):
        k = tl.load(key + keys_at, real_key, 0.0)
        v = tl.load(value + values_at, real_value, 0.0)
        f = tl.load(forget + rows * tokens * HEADS, real_row, 0.0)[:, None, None]
        q = tl.load(query + queries_at, real_key, 0.0)
        if KEEP:
            tl.store(states + states_at, h, real)
        candidate = _candidate(h, k, v, w, PRECISION)
        h = candidate + f * (h - candidate)
        if NOISY:
            along, _inverse = _unit(k)
            h += along[:, :, None] * tl.load(noise + by_value + outputs_at, real_value, 0.0)[:, None, :]
        tl.store(outputs + by_value + outputs_at, tl.sum(q[:, :, None] * h, axis=1), real_value)
        query += query_stride
        key += key_stride
        value += value_stride
        forget += HEADS
        by_value += HEADS * V
        states += batch * K * V
    tl.store(last + place, h, real)


@triton.jit(do_not_specialize=STRIDES)
def _m2rnn_backward_kernel(
    query, key, value, forget, noise, weight, states, d_outputs, d_last, d_query, d_key, d_value, d_forget, d_weight,
    d_first, batch, tokens, query_stride, key_stride, value_stride, weight_stride, HEADS: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    NOISY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    stack = tl.program_id(1).to(tl.int64)
    model, head = stack // HEADS, stack % HEADS
    start = tl.program_id(0) * ROWS
    rows, keys, values, inputs = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, VALUES), tl.arange(0, VALUES)
    real_row = start + rows < batch
    real_key = real_row[:, None] & (keys[None, :] < K)
    real_value = real_row[:, None] & (values[None, :] < V)
    real = real_key[:, :, None] & (values[None, None, :] < V)
    square = (inputs[:, None] < V) & (values[None, :] < V)
    weight += model * weight_stride + head * V * V
    w = factor(tl.load(weight + inputs[:, None] * V + values[None, :], square, 0.0), PRECISION)
    transposed = factor(tl.load(weight + values[None, :] * V + inputs[:, None], square, 0.0), PRECISION)

    sequence = model * batch + start
    within = keys[None, :, None] * V + values[None, None, :]
    place = (sequence * HEADS + head) * K * V + rows[:, None, None] * HEADS * K * V + within
    d_h = tl.load(d_last + place, real, 0.0)
    d_w = tl.zeros([VALUES, VALUES], tl.float32)
    token = sequence * tokens + tokens - 1
    query += token * query_stride + head * K
    key += token * key_stride + head * K
    value += token * value_stride + head * V
    by_head = token * HEADS + head
    states += ((stack * tokens + tokens - 1) * batch + start) * K * V
    queries_at = rows[:, None] * tokens * query_stride + keys[None, :]
    keys_at = rows[:, None] * tokens * key_stride + keys[None, :]
    values_at = rows[:, None] * tokens * value_stride + values[None, :]
    heads_at = rows * tokens * HEADS
    d_keys_at = heads_at[:, None] * K + keys[None, :]  # and the gradient of the queries
    outputs_at = heads_at[:, None] * V + values[None, :]  # and noise, and the gradient of the values
    states_at = rows[:, None, None] * K * V + within
    for _ in range(tokens):
        before = tl.load(states + states_at, real, 0.0)
        k = tl.load(key + keys_at, real_key, 0.0)
        v = tl.load(value + values_at, real_value, 0.0)
        f = tl.load(forget + by_head + heads_at, real_row, 0.0)[:, None, None]
        q = tl.load(query + queries_at, real_key, 0.0)
        d_output = tl.load(d_outputs + by_head * V + outputs_at, real_value, 0.0)[:, None, :]
        candidate = _candidate(before, k, v, w, PRECISION)
        d_h += q[:, :, None] * d_output
        difference = before - candidate
        h = candidate + f * difference
        d_f = tl.sum(tl.sum(d_h * difference, axis=2), axis=1)
        tl.store(d_forget + by_head + heads_at, d_f, real_row)
        d_moved = d_h * ((1 - f) * (1 - candidate * candidate))  # the gradient inside the tanh
        d_k = tl.sum(d_moved * v[:, None, :], axis=2)
        if NOISY:
            along, inverse = _unit(k)
            e = tl.load(noise + by_head * V + outputs_at, real_value, 0.0)[:, None, :]
            h += along[:, :, None] * e
            d_along = tl.sum(d_h * e, axis=2)
            # The length of a key does not matter unless it is below the bound.
            lengthwise = tl.where(inverse < 1e12, tl.sum(along * d_along, axis=1)[:, None], 0.0)
            d_k += (d_along - along * lengthwise) * inverse
        tl.store(d_key + by_head * K + d_keys_at, d_k, real_key)
        tl.store(d_query + by_head * K + d_keys_at, tl.sum(h * d_output, axis=2), real_key)
        tl.store(d_value + by_head * V + outputs_at, tl.sum(d_moved * k[:, :, None], axis=1), real_value)
        moved = tl.reshape(d_moved, [ROWS * KEYS, VALUES])
        d_w = add_product(d_w, tl.trans(tl.reshape(before, [ROWS * KEYS, VALUES])), moved, PRECISION)
        kept = tl.reshape(f * d_h, [ROWS * KEYS, VALUES])
        d_h = tl.reshape(add_product(kept, moved, transposed, PRECISION), [ROWS, KEYS, VALUES])
        query -= query_stride
        key -= key_stride
        value -= value_stride
        by_head -= HEADS
        states -= batch * K * V
    tl.store(d_first + place, d_h, real)
    # One matrix per tile, summed afterwards in a fixed order; atomic additions would have no fixed order.
    d_weight += (stack * tl.num_programs(0) + tl.program_id(0)) * V * V
    tl.store(d_weight + inputs[:, None] * V + values[None, :], d_w, square)


def forward(
    query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight: Tensor, state: Tensor, noise: Tensor | None,
    precision: str, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return outputs (S, B, T, H, V), the last state (S, B, H, K, V), and the states for the backward pass.

    Queries, keys and values may be slices of a wider tensor (S, B, T, ...); all other inputs are dense, the weight
    within a model. Without `keep`, no states are returned.
    """
    models, batch, tokens, heads, key_size = key.shape
    value_size = value.shape[-1]
    outputs = forget.new_empty(models, batch, tokens, heads, value_size)
    states = outputs.new_empty((models, heads, tokens, batch, key_size, value_size) if keep else 0)
    last = torch.empty_like(state)
    settings = _tiling(key_size, value_size, FORWARD_TILE)
    _m2rnn_forward_kernel[(triton.cdiv(batch, settings["ROWS"]), models * heads)](
        query, key, value, forget, noise, weight, state, outputs, states, last, batch, tokens, query.stride(2),
        key.stride(2), value.stride(2), weight.stride(0), HEADS=heads, NOISY=noise is not None, KEEP=keep,
        PRECISION=precision, **settings,
    )  # fmt: skip
    return outputs, last, states


def backward(
    d_outputs: Tensor, d_last: Tensor, query: Tensor, key: Tensor, value: Tensor, forget: Tensor, weight: Tensor,
    states: Tensor, noise: Tensor | None, precision: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of queries, keys, values, forget gates, weight and first state."""
    models, batch, tokens, heads, key_size = key.shape
    value_size = value.shape[-1]
    settings = _tiling(key_size, value_size, BACKWARD_TILE)
    tiles = triton.cdiv(batch, settings["ROWS"])
    d_query, d_key, d_value, d_forget, d_first = (
        torch.empty_like(part, memory_format=torch.contiguous_format) for part in (query, key, value, forget, d_last)
    )
    d_weight = forget.new_empty(models, heads, tiles, value_size, value_size)
    _m2rnn_backward_kernel[(tiles, models * heads)](
        query, key, value, forget, noise, weight, states, d_outputs, d_last, d_query, d_key, d_value, d_forget,
        d_weight, d_first, batch, tokens, query.stride(2), key.stride(2), value.stride(2), weight.stride(0),
        HEADS=heads, NOISY=noise is not None, PRECISION=precision, **settings,
        maxnreg=BACKWARD_REGISTERS if settings["VALUES"] == 16 else None,
    )  # fmt: skip
    return d_query, d_key, d_value, d_forget, d_weight.sum(2), d_first


def _tiling(key_size: int, value_size: int, elements: int) -> dict[str, int]:
    """Return the sizes of a tile: powers of two, and at least 16 rows and columns, for the tensor cores."""
    keys, values = triton.next_power_of_2(key_size), max(16, triton.next_power_of_2(value_size))
    rows = max(elements // (keys * values), 16 // keys, 1)
    # A single warp needs no barriers. The weight of 64 values takes the registers of four.
    warps = 1 if values < 64 else 4
    return {
        "K": key_size, "V": value_size, "KEYS": keys, "VALUES": values, "ROWS": rows, "num_warps": warps,
        "num_stages": 1,
    }  # fmt: skip
