"""The delta rule token by token on a GPU, with the state of a head on the chip, forward and backward.

A program owns some heads of one sequence, or one head, or some values of a head: a column of the state evolves by
itself, so programs never wait for each other. The forward kernel stores the state before every segment of SEGMENT
steps. The backward kernel loads the inputs of a segment at once, computes its states again, keeps all of them in
registers, and walks back through the segment.

Shapes: S stacked models, B sequences, T tokens, N steps per token, H heads, K key size, V value size. Queries, keys,
values, betas and decays are rows, one for each sequence and token, with the heads (of each step) side by side.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.delta.form import Form, Shape, Terms
from latebloom.layers.delta.step_triton import activate, at_step, d_unit, decayed, load, step_state, unit

SEGMENT = 5
"""The most steps whose states the backward kernel keeps in registers."""
TILES = (1024, 512)
"""Elements of the states per warp of the forward and of the backward kernel; small heads share a warp."""
REGISTERS = (128, 255)
"""Registers a thread of the forward and of the backward kernel; with more, the chip holds fewer programs at once."""
MOST_VALUES = 32
"""Values of a head that one program takes, at most."""


@triton.jit
def _delta_forward_kernel(
    q, k, v, beta, decay, noise, rate, bias, first, outputs, last, marks, batch, tokens, scale, q_row, k_row, v_row,
    beta_row, decay_row, q_head, k_head, v_head, beta_head, decay_head, rate_stride, bias_stride,
    K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr, RAW: tl.constexpr,
    ERASES: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, CHANNELS: tl.constexpr, NOISY: tl.constexpr,
    STARTS: tl.constexpr, KEEP: tl.constexpr, SEGMENT: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUP
    model = sequence // batch
    heads = tl.arange(0, GROUP)
    keys = tl.arange(0, KEYS)[None, :]
    columns = tl.program_id(2) * VALUES + tl.arange(0, VALUES)[None, :]
    square = (keys[:, :, None] < K) & (columns[:, None, :] < V)
    matrix = keys[:, :, None] * V + columns[:, None, :]
    key_places = heads[:, None] * K + keys
    value_places = heads[:, None] * V + columns
    places = (
        heads[:, None] * q_head + keys, heads[:, None] * k_head + keys, heads[:, None] * v_head + columns,
        heads * beta_head, heads[:, None] * decay_head + keys if CHANNELS else heads * decay_head, value_places,
    )  # fmt: skip
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
        rate_of_head = tl.exp(tl.load(rate + model * rate_stride + head + heads))
        if CHANNELS:
            rate_of_head = rate_of_head[:, None]
            bias_of_head = tl.load(bias + model * bias_stride + head * K + key_places, keys < K, 0.0)
        else:
            bias_of_head = tl.load(bias + model * bias_stride + head + heads)
    if KEEP:
        marks += pair * ((steps - 1) // SEGMENT) * K * V
    mark_places = heads[:, None, None] * ((steps - 1) // SEGMENT) * K * V + matrix
    matrix += heads[:, None, None] * K * V

    # A masked load fixes the layout of the state; of `tl.zeros` the compiler makes several and converts between them.
    state = tl.load(last + matrix, square & (columns[:, None, :] < tl.minimum(tokens, 0)), 0.0)
    if not STARTS:
        state = tl.load(first + pair * K * V + matrix, square, 0.0)
    inputs_next = load(
        0, 1, q, k, v, beta, decay, noise, q_row, k_row, v_row, beta_row, decay_row,
        k_head, v_head, beta_head, places, keys, columns, K, V, HEADS, STEPS, ERASES, DECAY, CHANNELS, NOISY,
    )  # fmt: skip
    for step in range(steps):
        key, value, query, strength, extra, exponent = inputs_next
        # Loaded before this step stores, which a load cannot pass.
        inputs_next = load(
            tl.minimum(step + 1, steps - 1), 1, q, k, v, beta, decay, noise, q_row, k_row, v_row, beta_row, decay_row,
            k_head, v_head, beta_head, places, keys, columns, K, V, HEADS, STEPS, ERASES, DECAY, CHANNELS, NOISY,
        )  # fmt: skip
        if KEEP:  # noqa: SIM102  (this is decided when the kernel is compiled, and the next line when it runs)
            if (step > 0) & (step % SEGMENT == 0):
                tl.store(marks + (step // SEGMENT - 1) * K * V + mark_places, state, square)
        t, n = step // STEPS, step % STEPS
        key, _, strength, factor, _, _ = activate(
            at_step(n, 0, 1), key, strength, exponent, rate_of_head, bias_of_head, RAW, ERASES, BETA, DECAY
        )
        query, _ = unit(query, RAW)
        _, _, state = step_state(state, key, value, strength, extra, factor, RAW, ERASES, CHANNELS, DECAY)
        out = tl.sum((scale * query)[:, :, None] * state, 1)
        tl.store(outputs + t * HEADS * V + value_places, out, columns < at_step(n, STEPS - 1, V))
    tl.store(last + pair * K * V + matrix, state, square)


@triton.jit
def _delta_backward_kernel(
    q, k, v, beta, decay, noise, rate, bias, first, marks, d_outputs, d_last, d_q, d_k, d_v, d_beta, d_decay, d_rate,
    d_bias, d_first, batch, tokens, scale, q_row, k_row, v_row, beta_row, decay_row, q_head, k_head, v_head, beta_head,
    decay_head, rate_stride, bias_stride, d_q_row, d_k_row, d_v_row, q_piece, k_piece,
    K: tl.constexpr, V: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr, RAW: tl.constexpr,
    ERASES: tl.constexpr, BETA: tl.constexpr, DECAY: tl.constexpr, CHANNELS: tl.constexpr, NOISY: tl.constexpr,
    STARTS: tl.constexpr, ENDS: tl.constexpr, SEGMENT: tl.constexpr, EVEN: tl.constexpr, KEYS: tl.constexpr,
    VALUES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUP
    model, part = sequence // batch, tl.program_id(2).to(tl.int64)
    heads = tl.arange(0, GROUP)
    keys = tl.arange(0, KEYS)[None, :]
    columns = tl.program_id(2) * VALUES + tl.arange(0, VALUES)[None, :]
    square = (keys[:, :, None] < K) & (columns[:, None, :] < V)
    matrix = keys[:, :, None] * V + columns[:, None, :]
    key_places = heads[:, None] * K + keys
    value_places = heads[:, None] * V + columns
    places = (
        heads[:, None] * q_head + keys, heads[:, None] * k_head + keys, heads[:, None] * v_head + columns,
        heads * beta_head, heads[:, None] * decay_head + keys if CHANNELS else heads * decay_head, value_places,
    )  # fmt: skip
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
        rate_of_head = tl.exp(tl.load(rate + model * rate_stride + head + heads))
        if CHANNELS:
            rate_of_head = rate_of_head[:, None]
            bias_of_head = tl.load(bias + model * bias_stride + head * K + key_places, keys < K, 0.0)
        else:
            bias_of_head = tl.load(bias + model * bias_stride + head + heads)

    segments = (steps + SEGMENT - 1) // SEGMENT
    marks += pair * (segments - 1) * K * V
    mark_places = heads[:, None, None] * (segments - 1) * K * V + matrix
    matrix += heads[:, None, None] * K * V
    # The gradient of the state, whose layout a masked load fixes.
    slope = tl.load(d_q + matrix, square & (columns[:, None, :] < tl.minimum(tokens, 0)), 0.0)
    if ENDS:
        slope = tl.load(d_last + pair * K * V + matrix, square, 0.0)
    rate_sum = tl.zeros([GROUP], tl.float32)
    bias_sum = tl.zeros([GROUP], tl.float32)
    if CHANNELS:
        rate_sum = tl.zeros([GROUP, KEYS], tl.float32)
        bias_sum = tl.zeros([GROUP, KEYS], tl.float32)
    for back in range(segments):
        segment = segments - 1 - back
        state = tl.load(marks + (segment - 1) * K * V + mark_places, square & (keys[:, :, None] < segment * K), 0.0)
        if not STARTS:
            state += tl.load(first + pair * K * V + matrix, square & (keys[:, :, None] < at_step(segment, 0, K)), 0.0)
        inputs = ()
        for i in tl.static_range(SEGMENT):
            step = segment * SEGMENT + i
            one = 1 if EVEN else tl.where(step < steps, 1, 0)
            d_out = tl.load(
                d_outputs + step // STEPS * HEADS * V + value_places,
                columns < V * at_step(step % STEPS, STEPS - 1, one), 0.0,
            )  # fmt: skip
            loaded = load(
                step, one, q, k, v, beta, decay, noise, q_row, k_row, v_row, beta_row, decay_row,
                k_head, v_head, beta_head, places, keys, columns, K, V, HEADS, STEPS, ERASES, DECAY, CHANNELS, NOISY,
            )  # fmt: skip
            inputs = inputs + ((loaded, d_out),)  # noqa: RUF005  (the compiler knows no other way)
        saved = ()
        for i in tl.static_range(SEGMENT):
            step = segment * SEGMENT + i
            one = 1 if EVEN else tl.where(step < steps, 1, 0)
            key, value, query, strength, extra, exponent = inputs[i][0]
            forgets = at_step(step % STEPS, 0, one)
            terms = activate(
                forgets, key, strength, exponent, rate_of_head, bias_of_head, RAW, ERASES, BETA, DECAY
            )  # fmt: skip
            key, _, strength, factor, _, _ = terms
            query, query_inverse = unit(query, RAW)
            before = state
            missing, new, state = step_state(before, key, value, strength, extra, factor, RAW, ERASES, CHANNELS, DECAY)
            saved = saved + ((before, missing, new, query, terms),)  # noqa: RUF005
            # Here rather than on the way back, where the state after the step would be kept as well.
            d_query = d_unit(scale * tl.sum(state * inputs[i][1][:, None, :], 2), query, query_inverse, RAW)
            reads = at_step(step % STEPS, STEPS - 1, one)
            tl.store(d_q + step // STEPS * d_q_row + key_places, d_query, keys < K * reads)
        for j in tl.static_range(SEGMENT):
            step = segment * SEGMENT + (SEGMENT - 1 - j)
            t, n = step // STEPS, step % STEPS
            one = 1 if EVEN else tl.where(step < steps, 1, 0)
            before, missing, new, query, terms = saved[SEGMENT - 1 - j]
            key, inverse, strength, factor, logarithm, exponent = terms
            d_out = inputs[SEGMENT - 1 - j][1]
            left = decayed(before, factor, CHANNELS, DECAY)

            slope += (scale * query)[:, :, None] * d_out[:, None, :]
            d_new = tl.sum(slope * key[:, :, None], 1)
            d_value = d_new
            if ERASES:
                d_missing = strength[:, None] * d_new
                d_key = tl.sum(slope * new[:, None, :] - left * d_missing[:, None, :], 2)
                slope -= key[:, :, None] * d_missing[:, None, :]
                d_strength = tl.sum(d_new * missing, 1)
                if RAW:
                    d_value = d_missing
                    d_strength *= strength * (1 - strength / BETA)
                tl.store(d_beta + (t * STEPS + n) * HEADS + heads, d_strength, heads < GROUP * one)
            else:
                d_key = tl.sum(slope * new[:, None, :], 2)
            d_key = d_unit(d_key, key, inverse, RAW)
            tl.store(d_k + t * d_k_row + n * HEADS * K + key_places, d_key, keys < K * one)
            tl.store(d_v + t * d_v_row + n * HEADS * V + value_places, d_value, columns < V * one)
            if DECAY != "none":
                forgets = at_step(n, 0, one)
                # With respect to the decay itself, or to its logarithm.
                d_factor = tl.sum(slope * (before if DECAY == "number" else left), 2)
                if not CHANNELS:
                    d_factor = tl.sum(d_factor, 1)
                if DECAY == "softplus":
                    d_factor = tl.where(forgets > 0, d_factor, 0.0)
                    rate_sum += d_factor * logarithm
                    d_factor *= -rate_of_head * tl.sigmoid(exponent)
                    bias_sum += d_factor
                if CHANNELS:
                    tl.store(d_decay + t * HEADS * K + key_places, d_factor, keys < K * forgets)
                else:
                    tl.store(d_decay + t * HEADS + heads, d_factor, heads < GROUP * forgets)
                slope = decayed(slope, factor, CHANNELS, DECAY)
    if not STARTS:
        tl.store(d_first + pair * K * V + matrix, slope, square)
    if DECAY == "softplus":
        # One row per program, summed afterwards in a fixed order; atomic additions would have no fixed order.
        place = part * tl.num_programs(0) * HEADS + pair
        if CHANNELS:
            tl.store(d_rate + place + heads, tl.sum(rate_sum, 1))
            tl.store(d_bias + place * K + key_places, bias_sum, keys < K)
        else:
            tl.store(d_rate + place + heads, rate_sum)
            tl.store(d_bias + place + heads, bias_sum)


def _settings(kernel: int, form: Form, terms: Terms, steps: int) -> tuple[dict[str, Any], int]:
    """Return the constants of a kernel, and the number of programs that share a head."""
    keys, values = (max(4, triton.next_power_of_2(size)) for size in (form.key_size, form.value_size))
    values = min(values, MOST_VALUES)
    segments = triton.cdiv(steps, SEGMENT)
    group = math.gcd(form.heads, max(1, TILES[kernel] // (keys * values)))
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
        "GROUP": group,
        "num_warps": min(16, max(1, group * keys * values // TILES[kernel])),
    }, triton.cdiv(form.value_size, values)


def _registers(kernel: int, settings: dict[str, Any]) -> dict[str, int]:
    """Return the limit of registers; with many warps the size of the program sets one already."""
    return {"maxnreg": REGISTERS[kernel]} if settings["num_warps"] <= 8 else {}


def forward(form: Form, terms: Terms, shape: Shape, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs (R, H V), the last state (S, B, H, K, V), and what the backward pass needs."""
    models, batch, tokens = shape
    settings, pieces = _settings(0, form, terms, tokens * form.steps)
    new = terms.q.new_empty
    outputs = new(len(terms.q), form.heads * form.value_size)
    last = new(models, batch, form.heads, form.key_size, form.value_size)
    marks = (tokens * form.steps - 1) // settings["SEGMENT"] if keep else 0
    kept = new(models, batch, form.heads, marks, form.key_size, form.value_size)
    _delta_forward_kernel[(models * batch, form.heads // settings["GROUP"], pieces)](
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
    settings, pieces = _settings(1, form, terms, tokens * form.steps)
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
    _delta_backward_kernel[(models * batch, heads // settings["GROUP"], pieces)](
        *terms, kept, d_outputs, d_last, d_q, d_k, d_v, d_beta, d_decay, d_rate, d_bias, d_first, batch, tokens,
        form.scale, *form.strides(terms), *strides, ENDS=d_last is not None,
        EVEN=tokens * steps % settings["SEGMENT"] == 0, **settings,
        **_registers(1, settings),
    )  # fmt: skip
    beta, decay, rate, bias = (None if part is None else _total(part) for part in (d_beta, d_decay, d_rate, d_bias))
    rate, bias = (None if part is None else part.sum(1) for part in (rate, bias))
    found = (*(_total(part) for part in parts), None, None)[:3]
    return *found, beta, decay, None, rate, bias, d_first


def _total(pieces: Tensor) -> Tensor:
    return pieces[0] if len(pieces) == 1 else pieces.sum(0)
