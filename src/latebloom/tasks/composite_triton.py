"""The sequences of the composite task on a GPU: one kernel launch instead of two dozen.

Shapes: S stacked streams, B rows, T tokens, A supervised positions.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from latebloom.tasks.random_triton import _below, _hash


@dataclass(frozen=True)
class Form:
    """What sequences of one length are made of."""

    counts: tuple[int, int]
    """The number of digits and of pairs."""
    starts: tuple[int, int]
    """The positions of the first digit and of the first pair."""
    bounds: tuple[int, int, int]
    """How many digits, keys and values there are."""
    firsts: tuple[int, int]
    """The tokens of the first key and of the first value."""
    markers: tuple[int, int]
    offsets: tuple[int, int, int, int]
    """What separates the random numbers of digits, keys, values and the query."""


@triton.jit(do_not_specialize=["digit_count", "pair_count", "first_digit", "first_pair"])  # they vary with the length
def _composite_kernel(
    keys, rows, tokens, positions, targets, row_count, digit_count, pair_count, first_digit, first_pair, bounds, firsts,
    markers, offsets, ITEMS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    columns = tl.arange(0, ITEMS)
    end = digit_count + 2 * pair_count
    tokens += program.to(tl.int64) * (end + 3)
    positions += program.to(tl.int64) * (digit_count + 2)
    targets += program.to(tl.int64) * (digit_count + 2)

    digits = _below(_hash(keys, rows, program, row_count, offsets[0], columns), bounds[0])
    digits = tl.where(columns < digit_count, digits, 0)
    states = tl.cumsum(digits, 0) % bounds[0]
    tl.store(tokens + first_digit + columns, digits, columns < digit_count)
    tl.store(positions + columns, (first_digit + columns).to(tl.int64), columns < digit_count)
    tl.store(targets + columns, states, columns < digit_count)

    values = _below(_hash(keys, rows, program, row_count, offsets[2], columns), bounds[2]) + firsts[1]
    tl.store(tokens + first_pair + 2 * columns + 1, values, columns < pair_count)
    asked = _below(_hash(keys, rows, program, row_count, offsets[3], columns), pair_count)
    asked = tl.sum(tl.where(columns == 0, asked, 0), 0)
    answer = tl.sum(tl.where(columns == asked, values, 0), 0)

    choices, last = tl.arange(0, KEYS), 0x7FFFFFFFFFFFFFFF  # the first keys in the order of their words, as `distinct`
    word = _hash(keys, rows, program, row_count, offsets[1], choices).to(tl.int64, bitcast=True)
    word = tl.where(choices < bounds[1], word, last)
    for place in range(pair_count):
        least = tl.argmin(word, 0, tie_break_left=True)
        key = least.to(tl.int64) + firsts[0]
        tl.store(tokens + first_pair + 2 * place, key)
        tl.store(tokens + end + 2, key, asked == place)
        word = tl.where(choices == least, last, word)

    tl.store(tokens + end, tl.zeros([], tl.int64) + markers[0])
    tl.store(tokens + end + 1, tl.zeros([], tl.int64) + markers[1])
    tl.store(positions + digit_count, tl.zeros([], tl.int64) + end)
    tl.store(positions + digit_count + 1, tl.zeros([], tl.int64) + end + 2)
    tl.store(targets + digit_count, tl.sum(digits, 0) % bounds[0])
    tl.store(targets + digit_count + 1, answer)


def draw(keys: Tensor, rows: Tensor, form: Form) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens (S, B, T), and positions and targets (S, B, A), for keys (S,) and rows (B,)."""
    digits, pairs = form.counts
    shape = keys.shape[0], rows.shape[0]
    tokens, positions, targets = (
        torch.empty(*shape, size, dtype=torch.int64, device=rows.device)
        for size in (digits + 2 * pairs + 3, digits + 2, digits + 2)
    )
    _composite_kernel[(shape[0] * shape[1],)](
        keys, rows, tokens, positions, targets, rows.shape[0], *form.counts, *form.starts, form.bounds, form.firsts,
        form.markers, form.offsets, ITEMS=max(16, triton.next_power_of_2(max(digits, pairs))),
        KEYS=triton.next_power_of_2(form.bounds[1]), num_warps=1,
    )  # fmt: skip
    return tokens, positions, targets
