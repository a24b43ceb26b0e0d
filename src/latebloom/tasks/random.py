"""Counter-based random numbers: each number is a pure function of its position.

The numbers of a stateful generator depend on everything drawn before. Here every number is a hash of (seed, split,
index, row, stream, position), so any batch can be made alone, in any order, on any device, and a hundred seeds can be
drawn in one call. The hash is the finalizer of splitmix64. All arithmetic is on int64 tensors, where overflow wraps on
CPU and CUDA alike.

Shapes: S stacked streams, B rows, N numbers per row.
"""

from typing import Literal

import torch
from torch import Tensor

from latebloom.layers.stacking import Operation, stackable

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _signed(word: int) -> int:
    """Return the int64 with the same 64 bits; torch has no unsigned arithmetic."""
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


def _mix_int(word: int) -> int:
    word &= _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _mix_tensor(words: Tensor) -> Tensor:
    def shifted(x: Tensor, bits: int) -> Tensor:
        return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts int64 with its sign; the mask drops it

    words = (words ^ shifted(words, 30)) * _signed(_FIRST)
    words = (words ^ shifted(words, 27)) * _signed(_SECOND)
    return words ^ shifted(words, 31)


def fold(*parts: int | Tensor) -> int | Tensor:
    """Return one key from several numbers. It is an int if all of them are, and a tensor if one of them is."""
    key: int | Tensor = 0
    for number, part in enumerate(parts):
        if isinstance(part, Tensor) and part.is_cuda and isinstance(key, int):
            rest = [each if isinstance(each, Tensor) else _signed(each) for each in parts[number + 1 :]]
            return fused_fold(part, _signed(key), *rest)
        spread = key * _signed(_GAMMA) if isinstance(key, Tensor) else _signed(key * _GAMMA)
        total = spread + part + 1
        key = _mix_tensor(total) if isinstance(total, Tensor) else _mix_int(total)
    return key


def bounded_int(key: int, bound: int) -> int:
    """Return an integer in [0, bound) from a key on the host."""
    return ((_mix_int(key) >> 33) * bound) >> 31


def stream_offset(stream: int) -> int:
    """Return what separates the words of a stream from those of others."""
    return _signed(_mix_int(stream + 1))


def words(key: int | Tensor, rows: Tensor, stream: int, count: int) -> Tensor:
    """Return hash words (B, N) for the rows (B,); a row has the same words in every batch."""
    offset = stream_offset(stream)
    if isinstance(key, Tensor) and key.is_cuda:
        return fused_words(key, rows, offset, count)
    key = _signed(key) if isinstance(key, int) else key
    row_keys = _mix_tensor(key + (rows + 1) * _signed(_GAMMA))
    columns = torch.arange(1, count + 1, device=rows.device, dtype=torch.int64)
    return _mix_tensor(row_keys[:, None] + offset + columns * _signed(_GAMMA))


def integers(key: int | Tensor, rows: Tensor, stream: int, count: int, bound: int | Tensor) -> Tensor:
    """Return integers (B, N) in [0, bound), uniform up to bound / 2^31; a tensor (B, N) has a bound for each."""
    if isinstance(key, Tensor) and key.is_cuda and isinstance(bound, int):
        return fused_integers(key, rows, stream_offset(stream), count, bound)
    top = (words(key, rows, stream, count) >> 33) & ((1 << 31) - 1)
    return (top * bound) >> 31


def shares(key: int | Tensor, rows: Tensor, stream: int, count: int) -> Tensor:
    """Return numbers (B, N) from 0 to below 1, uniform in steps of 2^-24."""
    return (words(key, rows, stream, count) >> 40 & 0xFFFFFF).float() / (1 << 24)


def distinct(key: int | Tensor, rows: Tensor, stream: int, count: int, bound: int) -> Tensor:
    """Return distinct integers (B, N) in [0, bound): the first N of a random permutation."""
    if isinstance(key, Tensor) and key.is_cuda and count <= FEW:
        return fused_distinct(key, rows, stream_offset(stream), count, bound)
    return words(key, rows, stream, bound).argsort(dim=1, stable=True)[:, :count]


ROUNDS = 10
"""Rounds of the Feistel network. With six, pairs of few tokens were visibly not uniform."""


def distinct_pairs(key: int | Tensor, rows: Tensor, stream: int, count: int, side: int) -> Tensor:
    """Return distinct pairs (B, N, 2) of integers in [0, side): the start of a pseudorandom permutation of all pairs.

    A Feistel network with random round functions takes the numbers of the pairs to the pairs. Memory and time grow with
    `count + side`, where sorting all pairs would take `side` squared.
    """
    shifts = integers(key, rows, stream, ROUNDS * side, side)
    number = torch.arange(count, device=rows.device).expand(rows.shape[0], count)
    left, right = number // side, number % side
    for turn in range(ROUNDS):
        left, right = right, (left + shifts.gather(1, turn * side + right)) % side
    return torch.stack([left, right], dim=2)


FEW = 64
"""Up to this many numbers, repeated argmin is faster than sorting."""


def _fused(kernel: Literal["words", "integers", "distinct"]) -> Operation:
    def stacked(key: Tensor, rows: Tensor, *numbers: int) -> Tensor:
        from latebloom.tasks import random_triton

        return getattr(random_triton, kernel)(key.contiguous(), rows[0].contiguous(), *numbers)

    return stackable(lambda key, rows, *numbers: stacked(key[None], rows[None], *numbers)[0], stacked)


fused_words, fused_integers, fused_distinct = _fused("words"), _fused("integers"), _fused("distinct")
"""`words`, `integers` and `distinct` on a GPU: (B, N) for a key () and rows (B,), which stacked streams share."""


def _stacked_fold(first: Tensor, key: int, *rest: int | Tensor) -> Tensor:
    from latebloom.tasks import random_triton

    return random_triton.fold(key, (first, *rest))


def _single_fold(first: Tensor, key: int, *rest: int | Tensor) -> Tensor:
    return _stacked_fold(first[None], key, *(part[None] if isinstance(part, Tensor) else part for part in rest))[0]


fused_fold = stackable(_single_fold, _stacked_fold)
"""`fold` on a GPU: the first part that is a tensor, the key of the parts before it, and the parts after it."""
