"""The delta rule token by token on a GPU, with the state of a head on the chip, forward and backward.

A program owns one head of one sequence, or some of its values: a column of the state evolves by itself, so programs
never wait for each other. The forward kernel stores the state before every segment of SEGMENT steps. The backward
kernel computes the states within a segment again, keeps them in registers, and walks back through the segment.

Shapes: S stacked models, B sequences, T tokens, N steps per token, H heads, K key size, V value size. Queries, keys,
values, betas and decays are rows, one for each sequence and token, with the heads (of each step) side by side.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.delta.form import Form, Shape, Terms

SEGMENT = 5
"""The most steps whose states the backward kernel keeps in registers."""
TILE = 256
"""Elements of the state per warp: 8 registers a thread."""
REGISTERS = (80, 168)
"""Registers a thread of the forward and of the backward kernel; with more, the chip holds fewer programs at once."""
MOST_VALUES = 32
"""Values of a head that one program takes, at most."""


@triton.jit
def _softplus(x):
    """Return log(1 + exp(x)), by a series for log(1 + z) that loses no digits where z is small."""
    z = tl.exp(-tl.abs(x))
    w = z / (2 + z)
    p = w * w
    series = 1.0 / 11 + p * (1.0 / 13 + p * (1.0 / 15 + p * (1.0 / 17)))
    series = 1 + p * (1.0 / 3 + p * (1.0 / 5 + p * (1.0 / 7 + p * (1.0 / 9 + p * series))))
    return tl.maximum(x, 0.0) + 2 * w * series


@triton.jit
def _unit(x, RAW: tl.constexpr):
    """Return a vector divided by its length, and what it was multiplied by; without RAW the vector itself."""
    inverse = 1.0
    if RAW:
        inverse = tl.rsqrt(tl.sum(x * x, 0) + 1e-6)
        x = x * inverse
    return x, inverse


@triton.jit
def _d_unit(d_y, y, inverse, RAW: tl.constexpr):
    """Return the gradient of what `_unit` was given."""
    if RAW:
        d_y = inverse * (d_y - y * tl.sum(y * d_y, 0))
    return d_y


@triton.jit
def _at(place, n, size):
    """Return a size, or 0 at other steps than the n-th of a token; masks are places below such sizes."""
    return tl.where(place == n, size, 0)


@triton.jit
def _inputs(
    step, steps, k, v, beta, decay, noise, rate, bias, k_row, v_row, beta_row, decay_row, k_head, v_head, beta_head,
    keys, columns, K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr, RAW: tl.constexpr,
    ERASES: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, CHANNELS: tl.constexpr, NOISY: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Return what a step forgets, erases and writes; a step past the end changes nothing."""
    t, n = step // STEPS, step % STEPS
    one = tl.where(step < steps, 1, 0)
    key = tl.load(k + t * k_row + n * HEADS * k_head + keys, keys < K * one, 0.0)
    key, inverse = _unit(key, RAW)
    value = tl.load(v + t * v_row + n * HEADS * v_head + columns, columns < V * one, 0.0)
    strength = 1.0
    if ERASES:
        strength = tl.load(beta + t * beta_row + n * HEADS * beta_head, one > 0, 0.0)
        if RAW:
            strength = BETA * tl.sigmoid(strength)
    extra = tl.zeros_like(value)
    if NOISY:
        extra = tl.load(noise + t * HEADS * V + columns, columns < _at(n, STEPS - 1, V * one), 0.0)
    exponent = tl.zeros([KEYS], tl.float32)
    logarithm = exponent
    factor = exponent
    if DECAY != "none":
        one = _at(n, 0, one)
        nothing: tl.constexpr = 1.0 if DECAY == "number" else 0.0
        if CHANNELS:
            exponent = tl.load(decay + t * decay_row + keys, keys < K * one, nothing)
        else:
            exponent += tl.load(decay + t * decay_row, one > 0, nothing)
        factor = exponent
        if DECAY == "softplus":
            exponent += bias
            logarithm = tl.where(one > 0, -rate * _softplus(exponent), 0.0)
            factor = tl.exp(logarithm)
        elif DECAY == "log":
            factor = tl.exp(exponent)
    return key, inverse, value, strength, extra, factor, logarithm, exponent


@triton.jit
def _step(state, key, value, strength, extra, factor, RAW: tl.constexpr, ERASES: tl.constexpr, DECAY: tl.constexpr):
    """Return the state that is left, what the strength multiplies, what is written under the key, and the state."""
    if DECAY != "none":
        state = factor[:, None] * state
    missing = value
    new = value
    if ERASES:
        stored = tl.sum(key[:, None] * state, 0)
        if RAW:
            missing = value - stored
            new = strength * missing + extra
        else:
            missing = -stored
            new = value + strength * missing
    return state, missing, new, state + key[:, None] * new[None, :]


@triton.jit
def _delta_forward_kernel(
    q, k, v, beta, decay, noise, rate, bias, first, outputs, last, marks, batch, tokens, scale, q_row, k_row, v_row,
    beta_row, decay_row, q_head, k_head, v_head, beta_head, decay_head, rate_stride, bias_stride,
    K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr, RAW: tl.constexpr,
    ERASES: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, CHANNELS: tl.constexpr, NOISY: tl.constexpr,
    STARTS: tl.constexpr, KEEP: tl.constexpr, SEGMENT: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    model = sequence // batch
    keys = tl.arange(0, KEYS)
    columns = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    square = (keys[:, None] < K) & (columns[None, :] < V)
    matrix = keys[:, None] * V + columns[None, :]
    row, steps = sequence * tokens, tokens * STEPS
    q += row * q_row + head * q_head
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    outputs += row * HEADS * V + head * V
    pair = sequence * HEADS + head
    rate_of_head = 0.0
    bias_of_head = 0.0
    if ERASES:
        beta += row * beta_row + head * beta_head
    if NOISY:
        noise += row * HEADS * V + head * V
    if DECAY != "none":
        decay += row * decay_row + head * decay_head
    if DECAY == "softplus":
        rate_of_head = tl.exp(tl.load(rate + model * rate_stride + head))
        if CHANNELS:
            bias_of_head = tl.load(bias + model * bias_stride + head * K + keys, keys < K, 0.0)
        else:
            bias_of_head = tl.load(bias + model * bias_stride + head)
    if KEEP:
        marks += pair * ((steps - 1) // SEGMENT) * K * V

    state = tl.zeros([KEYS, VALUES], tl.float32)
    if not STARTS:
        state = tl.load(first + pair * K * V + matrix, square, 0.0)
    for step in range(steps):
        if KEEP:  # noqa: SIM102  (this is decided when the kernel is compiled, and the next line when it runs)
            if (step > 0) & (step % SEGMENT == 0):
                tl.store(marks + (step // SEGMENT - 1) * K * V + matrix, state, square)
        key, _, value, strength, extra, factor, _, _ = _inputs(
            step, steps, k, v, beta, decay, noise, rate_of_head, bias_of_head, k_row, v_row, beta_row, decay_row,
            k_head, v_head, beta_head, keys, columns, K, V, HEADS, STEPS, RAW, ERASES, BETA, DECAY, CHANNELS, NOISY,
            KEYS,
        )  # fmt: skip
        t, n = step // STEPS, step % STEPS
        query = tl.load(q + t * q_row + keys, keys < _at(n, STEPS - 1, K), 0.0)
        query, _ = _unit(query, RAW)
        _, _, _, state = _step(state, key, value, strength, extra, factor, RAW, ERASES, DECAY)
        out = tl.sum((scale * query)[:, None] * state, 0)
        tl.store(outputs + t * HEADS * V + columns, out, columns < _at(n, STEPS - 1, V))
    tl.store(last + pair * K * V + matrix, state, square)


@triton.jit
def _delta_backward_kernel(
    q, k, v, beta, decay, noise, rate, bias, first, marks, d_outputs, d_last, d_q, d_k, d_v, d_beta, d_decay, d_rate,
    d_bias, d_first, batch, tokens, scale, q_row, k_row, v_row, beta_row, decay_row, q_head, k_head, v_head, beta_head,
    decay_head, rate_stride, bias_stride, d_q_row, d_k_row, d_v_row, q_piece, k_piece,
    K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr, RAW: tl.constexpr,
    ERASES: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, CHANNELS: tl.constexpr, NOISY: tl.constexpr,
    STARTS: tl.constexpr, ENDS: tl.constexpr, SEGMENT: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    model, part = sequence // batch, tl.program_id(2).to(tl.int64)
    keys = tl.arange(0, KEYS)
    columns = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    square = (keys[:, None] < K) & (columns[None, :] < V)
    matrix = keys[:, None] * V + columns[None, :]
    row, steps = sequence * tokens, tokens * STEPS
    rows = tl.num_programs(0).to(tl.int64) * tokens
    q += row * q_row + head * q_head
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    d_outputs += row * HEADS * V + head * V
    d_q += part * q_piece + row * d_q_row + head * K
    d_k += part * k_piece + row * d_k_row + head * K
    d_v += row * d_v_row + head * V
    pair = sequence * HEADS + head
    decays: tl.constexpr = K if CHANNELS else 1
    rate_of_head = 0.0
    bias_of_head = 0.0
    if ERASES:
        beta += row * beta_row + head * beta_head
        d_beta += (part * rows + row) * STEPS * HEADS + head
    if NOISY:
        noise += row * HEADS * V + head * V
    if DECAY != "none":
        decay += row * decay_row + head * decay_head
        d_decay += ((part * rows + row) * HEADS + head) * decays
    if DECAY == "softplus":
        rate_of_head = tl.exp(tl.load(rate + model * rate_stride + head))
        if CHANNELS:
            bias_of_head = tl.load(bias + model * bias_stride + head * K + keys, keys < K, 0.0)
        else:
            bias_of_head = tl.load(bias + model * bias_stride + head)

    segments = (steps + SEGMENT - 1) // SEGMENT
    marks += pair * (segments - 1) * K * V
    slope = tl.zeros([KEYS, VALUES], tl.float32)  # the gradient of the state
    if ENDS:
        slope = tl.load(d_last + pair * K * V + matrix, square, 0.0)
    rate_sum = tl.zeros([KEYS], tl.float32)
    bias_sum = tl.zeros([KEYS], tl.float32)
    for back in range(segments):
        segment = segments - 1 - back
        state = tl.load(marks + (segment - 1) * K * V + matrix, square & (keys[:, None] < segment * K), 0.0)
        if not STARTS:
            state += tl.load(first + pair * K * V + matrix, square & (keys[:, None] < _at(segment, 0, K)), 0.0)
        states = (state,)
        for i in tl.static_range(SEGMENT - 1):
            key, _, value, strength, extra, factor, _, _ = _inputs(
                segment * SEGMENT + i, steps, k, v, beta, decay, noise, rate_of_head, bias_of_head, k_row, v_row,
                beta_row, decay_row, k_head, v_head, beta_head, keys, columns, K, V, HEADS, STEPS, RAW, ERASES, BETA,
                DECAY, CHANNELS, NOISY, KEYS,
            )  # fmt: skip
            _, _, _, state = _step(state, key, value, strength, extra, factor, RAW, ERASES, DECAY)
            states = states + (state,)  # noqa: RUF005  (the compiler knows no other way)
        for j in tl.static_range(SEGMENT):
            step = segment * SEGMENT + (SEGMENT - 1 - j)
            t, n = step // STEPS, step % STEPS
            one = tl.where(step < steps, 1, 0)
            key, inverse, value, strength, extra, factor, logarithm, exponent = _inputs(
                step, steps, k, v, beta, decay, noise, rate_of_head, bias_of_head, k_row, v_row, beta_row, decay_row,
                k_head, v_head, beta_head, keys, columns, K, V, HEADS, STEPS, RAW, ERASES, BETA, DECAY, CHANNELS,
                NOISY, KEYS,
            )  # fmt: skip
            reads = _at(n, STEPS - 1, one)
            query = tl.load(q + t * q_row + keys, keys < K * reads, 0.0)
            query, query_inverse = _unit(query, RAW)
            d_out = tl.load(d_outputs + t * HEADS * V + columns, columns < V * reads, 0.0)
            before = states[SEGMENT - 1 - j]
            left, missing, new, after = _step(before, key, value, strength, extra, factor, RAW, ERASES, DECAY)

            slope += (scale * query)[:, None] * d_out[None, :]
            d_query = _d_unit(scale * tl.sum(after * d_out[None, :], 1), query, query_inverse, RAW)
            tl.store(d_q + t * d_q_row + keys, d_query, keys < K * reads)
            d_new = tl.sum(slope * key[:, None], 0)
            d_value = d_new
            if ERASES:
                d_missing = strength * d_new
                d_key = tl.sum(slope * new[None, :] - left * d_missing[None, :], 1)
                slope -= key[:, None] * d_missing[None, :]
                d_strength = tl.sum(d_new * missing, 0)
                if RAW:
                    d_value = d_missing
                    d_strength *= strength * (1 - strength / BETA)
                tl.store(d_beta + (t * STEPS + n) * HEADS, d_strength, one > 0)
            else:
                d_key = tl.sum(slope * new[None, :], 1)
            d_key = _d_unit(d_key, key, inverse, RAW)
            tl.store(d_k + t * d_k_row + n * HEADS * K + keys, d_key, keys < K * one)
            tl.store(d_v + t * d_v_row + n * HEADS * V + columns, d_value, columns < V * one)
            if DECAY != "none":
                forgets = _at(n, 0, one)
                # With respect to the decay itself, or to its logarithm.
                d_factor = tl.sum(slope * (before if DECAY == "number" else left), 1)
                if DECAY == "softplus":
                    d_factor = tl.where(forgets > 0, d_factor, 0.0)
                    rate_sum += d_factor * logarithm
                    d_factor *= -rate_of_head * tl.sigmoid(exponent)
                    bias_sum += d_factor
                if CHANNELS:
                    tl.store(d_decay + t * HEADS * K + keys, d_factor, keys < K * forgets)
                else:
                    tl.store(d_decay + t * HEADS, tl.sum(d_factor, 0), forgets > 0)
                slope = factor[:, None] * slope
    if not STARTS:
        tl.store(d_first + pair * K * V + matrix, slope, square)
    if DECAY == "softplus":
        # One row per program, summed afterwards in a fixed order; atomic additions would have no fixed order.
        place = part * tl.num_programs(0) * HEADS + pair
        tl.store(d_rate + place, tl.sum(rate_sum, 0))
        if CHANNELS:
            tl.store(d_bias + place * K + keys, bias_sum, keys < K)
        else:
            tl.store(d_bias + place, tl.sum(bias_sum, 0))


def _settings(form: Form, terms: Terms, steps: int) -> tuple[dict[str, Any], int]:
    """Return the constants of both kernels, and the number of programs that share a head."""
    keys, values = (max(4, triton.next_power_of_2(size)) for size in (form.key_size, form.value_size))
    values = min(values, MOST_VALUES)
    segments = triton.cdiv(steps, SEGMENT)
    return {
        "K": form.key_size,
        "V": form.value_size,
        "HEADS": form.heads,
        "STEPS": form.steps,
        "RAW": form.raw,
        "ERASES": terms.beta is not None,
        "BETA": form.most_beta,
        "DECAY": form.decay,
        "CHANNELS": form.channels,
        "NOISY": terms.noise is not None,
        "STARTS": terms.state is None,
        "SEGMENT": triton.cdiv(steps, segments),
        "KEYS": keys,
        "VALUES": values,
        "num_warps": min(16, max(1, keys * values // TILE)),
    }, triton.cdiv(form.value_size, values)


def _registers(kernel: int, settings: dict[str, Any]) -> dict[str, int]:
    """Return the limit of registers; of a program with many warps, the compiler knows the limit."""
    return {"maxnreg": REGISTERS[kernel]} if settings["num_warps"] <= 8 else {}


def forward(form: Form, terms: Terms, shape: Shape, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs (R, H V), the last state (S, B, H, K, V), and what the backward pass needs."""
    models, batch, tokens = shape
    settings, pieces = _settings(form, terms, tokens * form.steps)
    new = terms.q.new_empty
    outputs = new(len(terms.q), form.heads * form.value_size)
    last = new(models, batch, form.heads, form.key_size, form.value_size)
    marks = (tokens * form.steps - 1) // settings["SEGMENT"] if keep else 0
    kept = new(models, batch, form.heads, marks, form.key_size, form.value_size)
    _delta_forward_kernel[(models * batch, form.heads, pieces)](
        *terms, outputs, last, kept, batch, tokens, form.scale, *form.strides(terms), KEEP=keep,
        **_registers(0, settings), **settings,
    )  # fmt: skip
    return outputs, last, kept


def backward(
    form: Form, terms: Terms, shape: Shape, kept: Tensor, d_outputs: Tensor, d_last: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the terms; the noise has none.

    With `form.raw`, that of queries, keys and values side by side stands in the place of the first.
    """
    models, batch, tokens = shape
    settings, pieces = _settings(form, terms, tokens * form.steps)
    heads, steps, rows, new = form.heads, form.steps, len(terms.q), terms.q.new_empty
    decays = form.key_size if form.channels else 1
    sizes = [heads * form.key_size, steps * heads * form.key_size, steps * heads * form.value_size]
    if form.raw:
        parts = (new(pieces, rows, sum(sizes)),)
        if pieces > 1:
            parts[0].zero_()  # the values are in the first piece alone
        d_q, d_k, d_v = parts[0].split(sizes, dim=-1)
    else:
        parts = d_q, d_k, d_v = (new(pieces, rows, sizes[0]), new(pieces, rows, sizes[1]), new(1, rows, sizes[2]))
    strides = (d_q.stride(1), d_k.stride(1), d_v.stride(1), d_q.stride(0), d_k.stride(0))
    d_beta = None if terms.beta is None else new(pieces, rows, steps * heads)
    d_decay = None if terms.decay is None else new(pieces, rows, heads * decays)
    d_rate = None if terms.rate is None else new(pieces, models, batch, heads)
    d_bias = None if terms.bias is None else new(pieces, models, batch, heads * decays)
    d_first = None if terms.state is None else torch.empty_like(terms.state)
    _delta_backward_kernel[(models * batch, heads, pieces)](
        *terms, kept, d_outputs, d_last, d_q, d_k, d_v, d_beta, d_decay, d_rate, d_bias, d_first, batch, tokens,
        form.scale, *form.strides(terms), *strides, ENDS=d_last is not None, **settings,
        **_registers(1, settings),
    )  # fmt: skip
    beta, decay, rate, bias = (None if part is None else _total(part) for part in (d_beta, d_decay, d_rate, d_bias))
    rate, bias = (None if part is None else part.sum(1) for part in (rate, bias))
    found = (*(_total(part) for part in parts), None, None)[:3]
    return *found, beta, decay, None, rate, bias, d_first


def _total(pieces: Tensor) -> Tensor:
    return pieces[0] if len(pieces) == 1 else pieces.sum(0)
