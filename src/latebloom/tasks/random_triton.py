"""The counter-based random numbers on a GPU: one kernel launch instead of a dozen.

Shapes: S stacked streams, B rows, N numbers per row.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _mix(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


@triton.jit
def _hash(keys, rows, program, row_count, offset, columns):
    key = tl.load(keys + program // row_count).to(tl.uint64, bitcast=True)
    row = tl.load(rows + program % row_count).to(tl.uint64, bitcast=True)
    row_key = _mix(key + (row + 1) * 0x9E3779B97F4A7C15)
    return _mix(row_key + offset.to(tl.uint64, bitcast=True) + (columns + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _below(word, bound):
    return (((word >> 33) * bound) >> 31).to(tl.int64, bitcast=True)


@triton.jit
def _random_fold_kernel(folded, key, tensors, strides, numbers, IS_TENSOR: tl.constexpr):
    program = tl.program_id(0)
    word = (tl.zeros([], tl.int64) + key).to(tl.uint64, bitcast=True)
    for place in tl.static_range(len(IS_TENSOR)):
        if IS_TENSOR[place]:
            part = tl.load(tensors[place] + program * strides[place])
        else:
            part = tl.zeros([], tl.int64) + numbers[place]
        word = _mix(word * 0x9E3779B97F4A7C15 + part.to(tl.uint64, bitcast=True) + 1)
    tl.store(folded + program, word.to(tl.int64, bitcast=True))


@triton.jit
def _random_integers_kernel(keys, rows, integers, row_count, count, bound, offset, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = _hash(keys, rows, program, row_count, offset, columns)
    tl.store(integers + program.to(tl.int64) * count + columns, _below(word, bound), columns < count)


@triton.jit
def _random_words_kernel(keys, rows, words, row_count, count, offset, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = _hash(keys, rows, program, row_count, offset, columns)
    tl.store(words + program.to(tl.int64) * count + columns, word.to(tl.int64, bitcast=True), columns < count)


@triton.jit
def _random_distinct_kernel(keys, rows, chosen, row_count, count, bound, offset, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    last = 0x7FFFFFFFFFFFFFFF
    word = _hash(keys, rows, program, row_count, offset, columns).to(tl.int64, bitcast=True)
    word = tl.where(columns < bound, word, last)
    for place in range(count):
        least = tl.argmin(word, 0, tie_break_left=True)
        tl.store(chosen + program.to(tl.int64) * count + place, least.to(tl.int64))
        word = tl.where(columns == least, last, word)


def fold(key: int, parts: Sequence[int | Tensor]) -> Tensor:
    """Return the keys (S,) that follow a key and parts, of which at least one is a tensor (S,)."""
    models = next(len(part) for part in parts if isinstance(part, Tensor))
    folded = torch.empty(models, dtype=torch.int64, device=next(p.device for p in parts if isinstance(p, Tensor)))
    _random_fold_kernel[(models,)](
        folded,
        key,
        tuple(part if isinstance(part, Tensor) else folded for part in parts),
        tuple(part.stride(0) if isinstance(part, Tensor) else 0 for part in parts),
        tuple(0 if isinstance(part, Tensor) else part for part in parts),
        IS_TENSOR=tuple(isinstance(part, Tensor) for part in parts),
        num_warps=1,
    )
    return folded


def integers(keys: Tensor, rows: Tensor, offset: int, count: int, bound: int) -> Tensor:
    """Return integers (S, B, N) in [0, bound) for keys (S,) and rows (B,)."""
    out = torch.empty(keys.shape[0], rows.shape[0], count, dtype=torch.int64, device=rows.device)
    block = min(BLOCK, triton.next_power_of_2(count))
    grid = (keys.shape[0] * rows.shape[0], triton.cdiv(count, block))
    _random_integers_kernel[grid](keys, rows, out, rows.shape[0], count, bound, offset, BLOCK=block, num_warps=1)
    return out


def words(keys: Tensor, rows: Tensor, offset: int, count: int) -> Tensor:
    """Return hash words (S, B, N) for keys (S,) and rows (B,)."""
    out = torch.empty(keys.shape[0], rows.shape[0], count, dtype=torch.int64, device=rows.device)
    block = min(BLOCK, triton.next_power_of_2(count))
    grid = (keys.shape[0] * rows.shape[0], triton.cdiv(count, block))
    _random_words_kernel[grid](keys, rows, out, rows.shape[0], count, offset, BLOCK=block, num_warps=1)
    return out


def distinct(keys: Tensor, rows: Tensor, offset: int, count: int, bound: int) -> Tensor:
    """Return the columns (S, B, N) of the smallest N of `bound` words, in order: the start of their stable sort."""
    out = torch.empty(keys.shape[0], rows.shape[0], count, dtype=torch.int64, device=rows.device)
    block = triton.next_power_of_2(bound)
    grid = (keys.shape[0] * rows.shape[0],)
    _random_distinct_kernel[grid](keys, rows, out, rows.shape[0], count, bound, offset, BLOCK=block, num_warps=1)
    return out
