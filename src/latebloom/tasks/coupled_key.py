"""Recall that depends on state: the sum of the digits selects the key."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.composite import Order, arrange
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import write_items
from latebloom.tasks.pieces import (
    KINDS,
    QUERY,
    SLOTS,
    ask,
    constant,
    draw_digits,
    draw_keys,
    draw_values,
    take,
)
from latebloom.tasks.random import integers, words
from latebloom.tasks.task import Batch, Supervision


@dataclass(frozen=True, kw_only=True)
class CoupledKey(KeyedTask):
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
    shortest: ClassVar = 4

    name: Literal["coupled_key"] = "coupled_key"
    modulus: Annotated[int, at_least(2)] = 5
    """Digits are 0 to m-1, and so are their sum and the slots of a key."""
    order: Order = "digits-first"
    """The order of digits and writes; interleaved is random, with each write kept together."""
    supervision: Supervision = "aligned"
    """Supervise the running sum at every digit as well (aligned), or the two answers alone (outcome)."""

    @property
    def markers(self) -> tuple[str, ...]:
        return "SUM", "ASK", *(f"s{slot}" for slot in range(self.modulus))

    @property
    def digits(self) -> int:
        return self.modulus

    @property
    def chance(self) -> dict[str, float]:
        return {"sum": 1 / self.modulus, "recall": 1 / self.values}

    def keys_needed(self, length: int) -> int:
        return -(-(length // 2) // self.modulus)

    def token_count(self, length: int) -> int:
        return (length + 1) // 2 + (self.key_tokens + 2) * (length // 2) + 2 + self.key_tokens

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        size = self.key_tokens
        items, key = tokens[: -2 - size], tokens[-size:]
        total = sum(token for token in items if token < self.modulus) % self.modulus
        wanted = [*key, self.vocabulary.marker(f"s{total}")]
        place = next(at for at in range(len(items)) if items[at : at + size + 1] == wanted)
        return {"sum": total, "recall": items[place + size + 1]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        digit_count, write_count = counts = (length + 1) // 2, length // 2
        shuffled = words(key, rows, KINDS, write_count).argsort(dim=1, stable=True)
        # Without the random shift the last key, which may be the only one, would have low slots alone.
        slots = (shuffled + integers(key, rows, SLOTS, 1, self.modulus)) % self.modulus
        keys = take(draw_keys(key, rows, self.keys_needed(length), self.vocabulary), shuffled // self.modulus)
        values = draw_values(key, rows, write_count, self.vocabulary)
        query = integers(key, rows, QUERY, 1, write_count)

        # The asked slot is uniform, so the last digit, which makes the sum equal to it, is uniform too.
        digits, sums = draw_digits(key, rows, digit_count, self.modulus)
        total = slots.gather(1, query)
        last = (digits[:, -1:] + total - sums[:, -1:]) % self.modulus
        digits, sums = torch.cat([digits[:, :-1], last], dim=1), torch.cat([sums[:, :-1], total, total], dim=1)

        size = self.key_tokens + 2
        digit_places, write_places = arrange(key, rows, self.order, counts, (1, size))
        end = digit_count + size * write_count
        items = write_items(
            end, (digit_places, digits), (write_places, keys, slots + self.vocabulary.marker("s0"), values)
        )
        markers = [constant(rows, self.vocabulary.marker(name)) for name in ("SUM", "ASK")]
        return ask(
            torch.cat([items, *markers, take(keys, query)[:, 0]], dim=1),
            {
                "sum": (torch.cat([digit_places, constant(rows, end)], dim=1), sums),
                "recall": (constant(rows, end + 1 + self.key_tokens), values.gather(1, query)),
            },
            self.supervision,
        )
