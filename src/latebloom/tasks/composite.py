"""State tracking and recall in one sequence: the main task of the paper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import first_tokens, items_of_kinds, random_kinds, write_items
from latebloom.tasks.pieces import ORDER, ask, constant, draw_digits, draw_pairs
from latebloom.tasks.task import Batch, Supervision

Order = Literal["digits-first", "pairs-first", "interleaved"]


@dataclass(frozen=True, kw_only=True)
class Composite(KeyedTask):
    """ceil(L/2) digits and floor(L/2) key-value pairs, then SUM, then ASK and a key. Both answers must be right.

    length 5, modulus 5, digits-first

        tokens   3 4 1  k7 v2 k1 v9  SUM  ASK k1
        outcome                      3        v9
        aligned  3 2 3               3        v9
    """

    answers: ClassVar = ("sum", "recall")
    state_answer: ClassVar = "sum"
    shortest: ClassVar = 2

    name: Literal["composite"] = "composite"
    modulus: Annotated[int, at_least(2)] = 10
    """Digits are 0 to m-1, and so is their sum."""
    order: Order = "digits-first"
    """The order of digits and pairs; interleaved is random, with each pair kept together."""
    supervision: Supervision = "aligned"
    """Supervise the running sum at every digit as well (aligned), or the two answers alone (outcome)."""

    @property
    def markers(self) -> tuple[str, ...]:
        return ("SUM", "ASK")

    @property
    def digits(self) -> int:
        return self.modulus

    @property
    def carried_modulus(self) -> int:
        return self.modulus

    @property
    def chance(self) -> dict[str, float]:
        return {"sum": 1 / self.modulus, "recall": 1 / self.values}

    def keys_needed(self, length: int) -> int:
        return length // 2

    def token_count(self, length: int) -> int:
        return (length + 1) // 2 + (self.key_tokens + 1) * (length // 2) + 2 + self.key_tokens

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        size = self.key_tokens
        items, key = tokens[: -2 - size], tokens[-size:]
        digits = [token for token in items if token < self.vocabulary.first_key]
        place = next(at for at in range(len(items)) if items[at : at + size] == key)
        return {"sum": sum(digits) % self.modulus, "recall": items[place + size]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        counts = (length + 1) // 2, length // 2
        digits, sums = draw_digits(key, rows, counts[0], self.modulus)
        keys, values, query, answer = draw_pairs(key, rows, counts[1], self.vocabulary)
        digit_places, pair_places = arrange(key, rows, self.order, counts, (1, self.key_tokens + 1))
        end = counts[0] + (self.key_tokens + 1) * counts[1]
        items = write_items(end, (digit_places, digits), (pair_places, keys, values))
        markers = [constant(rows, self.vocabulary.marker(name)) for name in ("SUM", "ASK")]
        sum_places = torch.cat([digit_places, constant(rows, end)], dim=1)
        return ask(
            torch.cat([items, *markers, query], dim=1),
            {
                "sum": (sum_places, torch.cat([sums, sums[:, -1:]], dim=1)),
                "recall": (constant(rows, end + 1 + self.key_tokens), answer),
            },
            self.supervision,
        )


def arrange(
    key: int | Tensor, rows: Tensor, order: Order, counts: tuple[int, int], sizes: tuple[int, int]
) -> tuple[Tensor, ...]:
    """Return the positions of the first tokens of digits and of pairs (B, count), for items of these sizes."""
    if order == "interleaved":
        kinds = random_kinds(key, rows, ORDER, counts)
    else:
        places = torch.arange(sum(counts), device=rows.device).expand(rows.shape[0], -1)
        kinds = (places >= counts[0]).long() if order == "digits-first" else (places < counts[1]).long()
    starts = first_tokens(kinds, sizes)
    return tuple(starts.gather(1, items) for items in items_of_kinds(kinds, counts))
