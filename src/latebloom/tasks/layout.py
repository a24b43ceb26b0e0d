"""Items of several kinds in one sequence: their order, their places, and their tokens.

Shapes: B sequences, L items, T tokens, N items of one kind.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from latebloom.tasks.random import integers, words


def random_kinds(key: int | Tensor, rows: Tensor, stream: int, counts: Sequence[int]) -> Tensor:
    """Return kinds (B, L) in random order: counts[0] items of kind 0, counts[1] of kind 1, and so on."""
    shuffled = words(key, rows, stream, sum(counts)).argsort(dim=1, stable=True)
    kinds = torch.zeros_like(shuffled)
    for edge in list(accumulate(counts))[:-1]:
        kinds = kinds + (shuffled >= edge)
    return kinds


def insert(kinds: Tensor, kind: int, others: Tensor) -> Tensor:
    """Return kinds (B, L) in which the N items of one kind have become, in order, these (B, N)."""
    chosen = kinds == kind
    number = (chosen.long().cumsum(dim=1) - 1).clamp(min=0)
    return torch.where(chosen, others.gather(1, number), kinds)


def items_of_kinds(kinds: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the item numbers (B, N) of each kind, in order of time."""
    return kinds.argsort(dim=1, stable=True).split(list(counts), dim=1)


def first_tokens(kinds: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the position (B, L) of the first token of each item, if an item of kind i has sizes[i] tokens."""
    size = torch.zeros_like(kinds)
    for kind, tokens in enumerate(sizes):
        size = torch.where(kinds == kind, tokens, size)
    return size.cumsum(dim=1) - size


def write_items(token_count: int, *items: tuple[Tensor, *tuple[int | Tensor, ...]]) -> Tensor:
    """Return tokens (B, T) from items that start at given positions (B, N).

    The parts of an item follow its positions: a token number for all items, tokens (B, N), or several (B, N, W).
    """
    starts = items[0][0]
    tokens = torch.empty(starts.shape[0], token_count, dtype=torch.int64, device=starts.device)
    for place, *parts in items:
        for part in parts:
            several = torch.full_like(place, part) if isinstance(part, int) else part
            for column in several.unbind(dim=2) if several.dim() == 3 else [several]:
                tokens = tokens.scatter(1, place, column)
                place = place + 1
    return tokens


def pick_write(key: int | Tensor, rows: Tensor, stream: int, writes: Tensor) -> Tensor:
    """Return for every item (B, L) the number of a random item before it that is a write (where there is one)."""
    in_order = (~writes).long().argsort(dim=1, stable=True)
    before = writes.long().cumsum(dim=1) - writes.long()
    return in_order.gather(1, integers(key, rows, stream, writes.shape[1], before))


def last_write(writes: Tensor, slots: Tensor) -> Tensor:
    """Return for every item (B, L) the number of the last write to its slot, up to it (where there is one).

    A stable sort by slot brings the items of a slot together in order of time; there a running maximum finds the last
    write. An item whose slot has not been written yet gets a write to another slot.
    """
    order = slots.argsort(dim=1, stable=True)
    places = torch.arange(slots.shape[1], device=slots.device).expand_as(slots)
    latest = torch.where(writes.gather(1, order), places, 0).cummax(dim=1).values
    return torch.empty_like(slots).scatter(1, order, order.gather(1, latest))


def writes_and_reads(key: int | Tensor, rows: Tensor, stream: int, writes: int, reads: int) -> Tensor:
    """Return kinds (B, writes + reads), 0 for a write and 1 for a read, in random order after a first write."""
    rest = random_kinds(key, rows, stream, (writes - 1, reads))
    return torch.cat([torch.zeros_like(rest[:, :1]), rest], dim=1)
