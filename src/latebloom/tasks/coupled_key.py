"""Recall that depends on state: the sum of the digits selects the key."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.digits_and_pairs import DigitsAndPairs
from latebloom.tasks.pieces import KINDS, QUERY, SLOTS, draw_keys, draw_values, keys_at
from latebloom.tasks.random import integers, words


@dataclass(frozen=True, kw_only=True)
class CoupledKey(DigitsAndPairs):
    """As composite, but a key has m slots with a value each, and the sum of the digits modulo m selects the slot.

    A key is written with all of its slots, except that the last key may have fewer; the order of the writes is random.
    So the key alone leaves up to m values to choose from. Below 2m items the written slots narrow the sum down.

    length 7, modulus 3, digits-first

        tokens   2 1 2 0  k7 s2 v4 k7 s0 v2 k7 s1 v9  SUM  ASK k7
        outcome                                       2        v4
        aligned  2 0 2 2                              2        v4
    """

    answers: ClassVar = ("sum", "recall")
    state_answer: ClassVar = "sum"
    markers: ClassVar = ("SUM", "ASK")
    shortest: ClassVar = 4

    name: Literal["coupled_key"] = "coupled_key"
    modulus: Annotated[int, at_least(2)] = 5
    """Digits are 0 to m-1, and so are their sum and the slots of a key."""

    @property
    def named_tokens(self) -> tuple[str, ...]:
        return *self.markers, *(f"s{slot}" for slot in range(self.modulus))

    @property
    def digits(self) -> int:
        return self.modulus

    def slot_of(self, state: int) -> list[int]:
        return [self.vocabulary.marker(f"s{state}")]

    def keys_needed(self, length: int) -> int:
        return -(-(length // 2) // self.modulus)

    def draw_items(
        self, key: int | Tensor, rows: Tensor, counts: tuple[int, int]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor, Tensor]:
        shuffled = words(key, rows, KINDS, counts[1]).argsort(dim=1, stable=True)
        # Without the random shift the last key, which may be the only one, would have low slots alone.
        slots = (shuffled + integers(key, rows, SLOTS, 1, self.modulus)) % self.modulus
        pool = draw_keys(key, rows, self.keys_needed(2 * counts[1]), self.vocabulary)
        keys, values = keys_at(pool, shuffled // self.modulus), draw_values(key, rows, counts[1], self.vocabulary)
        query = integers(key, rows, QUERY, 1, counts[1])

        # The asked slot is uniform, so the last digit, which makes the sum equal to it, is uniform too.
        digits, sums = self.draw_digits(key, rows, counts[0])
        total = slots.gather(1, query)
        last = (digits[:, -1:] + total - sums[:, -1:]) % self.modulus
        digits, sums = torch.cat([digits[:, :-1], last], dim=1), torch.cat([sums[:, :-1], total], dim=1)
        pairs = keys, slots + self.vocabulary.marker("s0"), values
        return digits, sums, pairs, keys_at(keys, query)[:, 0], values.gather(1, query)
