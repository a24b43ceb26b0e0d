"""Pointers into an array: after swaps of the pointers, the cell at one of them is asked."""

from dataclasses import dataclass
from math import factorial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.errors import ConfigError, require
from latebloom.fields import at_least
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import write_items
from latebloom.tasks.permutations import cycle, running_product, unrank, with_start
from latebloom.tasks.pieces import MOVES, QUERY, START, batch_of, constant, draw_keys, draw_values, keys_at
from latebloom.tasks.random import distinct, integers
from latebloom.tasks.task import Batch, Supervision

POINTERS = "abcde"


@dataclass(frozen=True, kw_only=True)
class StateBasedRecall(KeyedTask):
    """Cells with addresses, five pointers to cells, swaps of two pointers; then the cell at a pointer is asked.

    FROM asks which pointer had, at the start, the address that this pointer has now; ASK asks for the cell there.

    tokens   k7 v2 k1 v9 ...  a k1 b k7 c k4 d k2 e k9  SWAP a b  SWAP b d  FROM d  ASK d
    outcome                                                                      a      v9
    aligned                                                    a         a       a      v9

    The length has two axes. At length L there are ceil(L/2) cells and floor(L/2) swaps; `grows` lets one of them grow
    with the length while the other stays at `held`, in training or in a later evaluation of the same model.
    """

    answers: ClassVar = ("from", "cell")
    state_answer: ClassVar = "from"
    markers: ClassVar = (*POINTERS, "SWAP", "FROM", "ASK")
    shortest: ClassVar = 2 * len(POINTERS) - 1

    name: Literal["state_based_recall"] = "state_based_recall"
    grows: Literal["both", "cells", "swaps"] = "both"
    """What grows with the length."""
    held: Annotated[int, at_least(1)] = 12
    """The number of swaps if only cells grow, and of cells if only swaps grow."""
    moved: bool = True
    """Ask only for pointers that no longer have the address they started with."""
    supervision: Supervision = "aligned"
    """Supervise, after every swap, where the second pointer's address is from as well (aligned), or the two answers
    alone (outcome)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grows == "both" and self.held != type(self).held:
            raise ConfigError(f"held: {self.held} has no effect with grows both; choose grows cells or swaps")
        pointers, keys = len(POINTERS), self.keys**self.key_tokens
        enough = self.grows != "swaps" or pointers <= self.held <= keys
        require(enough, "held", self.held, f"from {pointers}, a cell for each pointer, to {keys}, one for each key")

    @property
    def chance(self) -> dict[str, float]:
        return {"from": 1 / (len(POINTERS) - self.moved), "cell": 1 / self.values}

    def counts(self, length: int) -> tuple[int, int]:
        """Return the number of cells and of swaps."""
        cells = self.held if self.grows == "swaps" else (length + 1) // 2
        return cells, self.held if self.grows == "cells" else length // 2

    def keys_needed(self, length: int) -> int:
        return self.counts(length)[0]

    def token_count(self, length: int) -> int:
        cells, swaps = self.counts(length)
        return (self.key_tokens + 1) * (cells + len(POINTERS)) + 3 * swaps + 4

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        size, first = self.key_tokens + 1, self.vocabulary.marker(POINTERS[0])
        array, start = {}, next(at for at, token in enumerate(tokens) if token >= first)
        for place in range(0, start, size):
            *address, array[tuple(address)] = tokens[place : place + size]
        swaps = start + size * len(POINTERS)
        addresses = {tokens[at]: tuple(tokens[at + 1 : at + size]) for at in range(start, swaps, size)}
        origin = {address: pointer for pointer, address in addresses.items()}
        for place in range(swaps, len(tokens) - 4, 3):
            one, other = tokens[place + 1 : place + 3]
            addresses[one], addresses[other] = addresses[other], addresses[one]
        return {"from": origin[addresses[tokens[-3]]], "cell": array[addresses[tokens[-1]]]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        (cells, swaps), n = self.counts(length), len(POINTERS)
        keys, values = draw_keys(key, rows, cells, self.vocabulary), draw_values(key, rows, cells, self.vocabulary)
        points, origins = self._draw_swaps(key, rows, swaps)
        end = origins[:, -1]
        if self.moved:  # the pointers that moved come first in a sort, in order
            stays = end == torch.arange(n, device=rows.device)
            query = integers(key, rows, QUERY, 1, (~stays).sum(dim=1, keepdim=True))
            pointer = stays.long().argsort(dim=1, stable=True).gather(1, query)
        else:
            pointer = integers(key, rows, QUERY, 1, n)
        origin = end.gather(1, pointer)
        cell = distinct(key, rows, START, n, cells)  # the cell of each pointer at the start

        size, letters = self.key_tokens + 1, self.vocabulary.marker(POINTERS[0])
        names = torch.arange(n, device=rows.device).expand(rows.shape[0], n) + letters
        swap_start = size * (cells + n)
        at_cells, at_pointers, at_swaps = (
            (first + step * torch.arange(count, device=rows.device)).expand(rows.shape[0], count)
            for first, step, count in ((0, size, cells), (size * cells, size, n), (swap_start, 3, swaps))
        )
        items = write_items(
            swap_start + 3 * swaps,
            (at_cells, keys, values),
            (at_pointers, names, keys_at(keys, cell)),
            (at_swaps, self.vocabulary.marker("SWAP"), points + letters),
        )
        where_from, ask_for = (constant(rows, self.vocabulary.marker(name)) for name in ("FROM", "ASK"))
        tokens = torch.cat([items, where_from, pointer + letters, ask_for, pointer + letters], dim=1)
        after = origins.gather(2, points[:, :, 1:])[:, :, 0]
        queries = {
            "from": (
                torch.cat([at_swaps + 2, constant(rows, items.shape[1] + 1)], dim=1),
                torch.cat([after, origin], dim=1) + letters,
            ),
            "cell": (constant(rows, items.shape[1] + 3), values.gather(1, cell.gather(1, origin))),
        }
        return batch_of(tokens, queries, self.supervision)

    def _draw_swaps(self, key: int | Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the two pointers of each swap (B, count, 2), and the order of the pointers after it (B, count, 5).

        The order names, for each pointer, the pointer that had its address at the start.
        """
        n = len(POINTERS)
        points = unrank(integers(key, rows, MOVES, count, factorial(n)), n)[:, :, :2]
        origins = running_product(cycle(points, n))
        if not self.moved:
            return points, origins
        # If the last swap brings every pointer back to its start, its second pointer is replaced by the next of the
        # pointers that it leaves alone.
        back = (origins[:, -1] == torch.arange(n, device=rows.device)).all(dim=1, keepdim=True)
        one, other = points[:, -1, :1], points[:, -1, 1:]
        step = 1 + ((other + 1) % n == one)
        last = torch.where(back, torch.cat([one, (other + step) % n], dim=1), points[:, -1])[:, None]
        before = with_start(origins[:, :-1])[:, -1:]
        changed = before.gather(2, cycle(last, n))
        return torch.cat([points[:, :-1], last], dim=1), torch.cat([origins[:, :-1], changed], dim=1)
