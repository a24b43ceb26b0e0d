"""The fused minGRU: one pass over the projected inputs forward, one backward.

A program owns some channels of a few sequences, keeps their states in registers and walks through the tokens. No
channel sees another and the projection has the weights, so the sequences of stacked models are like those of one. The
backward kernel reads the state before a token from the outputs: nothing is stored for it.

Shapes: N sequences of all stacked models, T tokens, D width. Memory order of projected inputs, and of their gradients:
(N, T, 2, D), the candidate and the update gate.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 128
"""States of a program: four neighbouring ones for each thread of a warp, which it loads and stores together."""
AHEAD = 4
"""Tokens whose inputs are loaded ahead, because a load cannot pass a store of the tokens before."""
COUNTS = ["sequences", "tokens"]
"""Triton need not compile a kernel for each kind of these: addresses are multiples of the width."""


@triton.jit
def _sigmoids(x):
    """Return sigmoid(x), and sigmoid(-x), which is exact where the first is nearly 1."""
    small = tl.exp(-tl.abs(x))
    larger = 1 / (1 + small)
    smaller = small * larger
    return tl.where(x >= 0, larger, smaller), tl.where(x >= 0, smaller, larger)


@triton.jit
def _inputs(projected, noise, projected_at, states_at, real, D: tl.constexpr, NOISY: tl.constexpr):
    """Return a token's candidate and update gate before their activation, and its noise."""
    candidate = tl.load(projected + projected_at, real, 0.0)
    update = tl.load(projected + D + projected_at, real, 0.0)
    added = candidate
    if NOISY:
        added = tl.load(noise + states_at, real, 0.0)
    return candidate, update, added


@triton.jit(do_not_specialize=COUNTS)
def _min_gru_forward_kernel(
    projected, first, noise, outputs, sequences, tokens, D: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    POSITIVE: tl.constexpr, STARTS: tl.constexpr, NOISY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    real_row = start + rows < sequences
    hidden = tl.zeros([ROWS, CHANNELS], tl.float32)
    if not STARTS:
        hidden = tl.load(first + start * D + (rows * D + columns), real_row & (columns < D), 0.0)
    # Scalar pointers advance from token to token, with one offset per element; pointers per element cost registers.
    states_at = rows * tokens * D + columns
    projected_at = rows * tokens * (2 * D) + columns
    projected += start * tokens * (2 * D)
    outputs += start * tokens * D
    if NOISY:
        noise += start * tokens * D
    ahead = ()
    for i in tl.static_range(AHEAD):
        there = real_row & (columns < tl.where(i < tokens, D, 0))
        ahead = ahead + (_inputs(projected, noise, projected_at, states_at, there, D, NOISY),)  # noqa: RUF005
        projected += 2 * D
        if NOISY:
            noise += D
    # A turn takes as many tokens as are loaded ahead, so that what was loaded stays in its registers until it is used:
    # moved to others, it would be waited for.
    for turn in range(tl.cdiv(tokens, AHEAD)):
        for i in tl.static_range(AHEAD):
            t = turn * AHEAD + i
            candidate, update, added = ahead[0]
            taken, kept = _sigmoids(update)
            if POSITIVE:
                low, _high = _sigmoids(candidate)
                candidate = tl.where(candidate >= 0, candidate + 0.5, low)
            hidden = kept * hidden + taken * candidate
            if NOISY:
                hidden += added
            there = real_row & (columns < tl.where(t + AHEAD < tokens, D, 0))
            ahead = ahead[1:] + (_inputs(projected, noise, projected_at, states_at, there, D, NOISY),)  # noqa: RUF005
            tl.store(outputs + states_at, hidden, real_row & (columns < tl.where(t < tokens, D, 0)))
            projected += 2 * D
            outputs += D
            if NOISY:
                noise += D


@triton.jit
def _inputs_back(
    projected, outputs, d_outputs, projected_at, states_at, row, t, real_row, columns, D: tl.constexpr
):  # fmt: skip
    """Return a token's candidate and update gate, the state before it, and its output's gradient, zeros if t < 0."""
    real = real_row & (columns < tl.where(t >= 0, D, 0))
    before = tl.load(outputs + row * D - D + states_at, real_row & (columns < tl.where(t > 0, D, 0)), 0.0)
    slope = tl.load(d_outputs + row * D + states_at, real, 0.0)
    candidate = tl.load(projected + row * (2 * D) + projected_at, real, 0.0)
    update = tl.load(projected + row * (2 * D) + D + projected_at, real, 0.0)
    return candidate, update, before, slope


@triton.jit(do_not_specialize=COUNTS)
def _min_gru_backward_kernel(
    projected, first, outputs, d_outputs, d_projected, d_first, d_noise, sequences, tokens, D: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, POSITIVE: tl.constexpr, STARTS: tl.constexpr,
    HAS_D_NOISE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    real_row = start + rows < sequences
    first_hidden = tl.zeros([ROWS, CHANNELS], tl.float32)
    if not STARTS:
        first_hidden = tl.load(first + start * D + (rows * D + columns), real_row & (columns < D), 0.0)
    states_at = rows * tokens * D + columns
    projected_at = rows * tokens * (2 * D) + columns
    row = start * tokens + tokens - 1  # the last token of the first sequence
    ahead = ()
    for i in tl.static_range(AHEAD):
        token = _inputs_back(
            projected, outputs, d_outputs, projected_at, states_at, row - i, tokens - 1 - i, real_row, columns, D
        )
        ahead = ahead + (token,)  # noqa: RUF005
    d_hidden = tl.zeros([ROWS, CHANNELS], tl.float32)
    for turn in range(tl.cdiv(tokens, AHEAD)):
        for i in tl.static_range(AHEAD):
            t = tokens - 1 - turn * AHEAD - i
            real = real_row & (columns < tl.where(t >= 0, D, 0))
            candidate, update, before, slope = ahead[0]
            if not STARTS:
                before = tl.where(t == 0, first_hidden, before)
            taken, kept = _sigmoids(update)
            d_hidden += slope
            d_candidate = d_hidden * taken
            if POSITIVE:
                low, high = _sigmoids(candidate)
                d_candidate *= tl.where(candidate >= 0, 1.0, low * high)
                candidate = tl.where(candidate >= 0, candidate + 0.5, low)
            d_update = d_hidden * (candidate - before) * (taken * kept)
            token = _inputs_back(
                projected, outputs, d_outputs, projected_at, states_at, row - AHEAD, t - AHEAD, real_row, columns, D
            )
            ahead = ahead[1:] + (token,)  # noqa: RUF005
            if HAS_D_NOISE:
                tl.store(d_noise + row * D + states_at, d_hidden, real)
            tl.store(d_projected + row * (2 * D) + projected_at, d_candidate, real)
            tl.store(d_projected + row * (2 * D) + D + projected_at, d_update, real)
            d_hidden = tl.where(t >= 0, d_hidden * kept, d_hidden)
            row -= 1
    if not STARTS:
        tl.store(d_first + start * D + (rows * D + columns), d_hidden, real_row & (columns < D))


def forward(projected: Tensor, state: Tensor | None, noise: Tensor | None, positive: bool) -> Tensor:
    """Return the states after each token (..., T, D) for dense projected inputs (..., T, 2D); a state of None is zero.

    State (..., D) and noise (..., T, D) are dense, too.
    """
    *leading, tokens, two_widths = projected.shape
    outputs = projected.new_empty(*leading, tokens, two_widths // 2)
    grid, sequences, settings = _tiling(outputs)
    _min_gru_forward_kernel[grid](
        projected, state, noise, outputs, sequences, tokens, POSITIVE=positive, STARTS=state is None,
        NOISY=noise is not None, **settings,
    )  # fmt: skip
    return outputs


def backward(
    projected: Tensor, state: Tensor | None, outputs: Tensor, d_outputs: Tensor, positive: bool, has_d_noise: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of the projected inputs, of the first state, and of the noise if wanted."""
    grid, sequences, settings = _tiling(outputs)
    d_projected = torch.empty_like(projected)
    d_state = None if state is None else torch.empty_like(state)
    d_noise = torch.empty_like(outputs) if has_d_noise else None
    _min_gru_backward_kernel[grid](
        projected, state, outputs, d_outputs, d_projected, d_state, d_noise, sequences, outputs.shape[-2],
        POSITIVE=positive, STARTS=state is None, HAS_D_NOISE=has_d_noise, **settings,
    )  # fmt: skip
    return d_projected, d_state, d_noise


def _tiling(outputs: Tensor) -> tuple[tuple[int, int], int, dict[str, int]]:
    """Return the programs, the number of sequences, and the constants of both kernels."""
    width = outputs.shape[-1]
    sequences = outputs.shape[:-2].numel()
    channels = min(ELEMENTS, triton.next_power_of_2(width))
    rows = ELEMENTS // channels
    settings = {"D": width, "CHANNELS": channels, "ROWS": rows, "AHEAD": AHEAD, "num_warps": 1, "num_stages": 1}
    return (triton.cdiv(sequences, rows), triton.cdiv(width, channels)), sequences, settings
