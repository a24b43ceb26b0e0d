"""State tracking and recall in one sequence: the main task of the paper."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.pieces import ORDER, Vocabulary, constant, draw_digits, draw_pairs, running
from latebloom.tasks.random import words
from latebloom.tasks.task import Batch, Supervision, Task


@dataclass(frozen=True, kw_only=True)
class Composite(Task):
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
    keys: Annotated[int, at_least(2)] = 256
    """Number of keys; a sequence of length L has floor(L/2) of them."""
    values: Annotated[int, at_least(2)] = 64
    """Number of values; several keys may have the same value."""
    order: Literal["digits-first", "pairs-first", "interleaved"] = "digits-first"
    """The order of digits and pairs; interleaved is random, with each pair kept together."""
    supervision: Supervision = "aligned"
    """Supervise the running sum at every digit as well (aligned), or the two answers alone (outcome)."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.modulus, self.keys, self.values, markers=("SUM", "ASK"))

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    @property
    def chance(self) -> dict[str, float]:
        return {"sum": 1 / self.modulus, "recall": 1 / self.values}

    @property
    def longest(self) -> int:
        return 2 * self.keys + 1

    def keys_needed(self, length: int) -> int:
        return length // 2

    def token_count(self, length: int) -> int:
        return (length + 1) // 2 + 2 * (length // 2) + 3

    def spell(self, token: int) -> str:
        return self.vocabulary.spell(token)

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        *items, _, _, key = tokens
        digits = [token for token in items if token < self.vocabulary.first_key]
        return {"sum": sum(digits) % self.modulus, "recall": items[items.index(key) + 1]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        digit_count, pair_count = (length + 1) // 2, length // 2
        digits, sums = draw_digits(key, rows, digit_count, self.modulus)
        keys, values, query, answer = draw_pairs(key, rows, pair_count, self.vocabulary)
        digit_places, pair_places = self._places(key, rows, digit_count, pair_count)
        items = torch.empty(rows.shape[0], digit_count + 2 * pair_count, dtype=torch.int64, device=rows.device)
        items = items.scatter(1, digit_places, digits)
        items = items.scatter(1, pair_places, keys).scatter(1, pair_places + 1, values)
        markers = [constant(rows, self.vocabulary.marker(name)) for name in ("SUM", "ASK")]
        tokens = torch.cat([items, *markers, query], dim=1)

        at_sum, at_key = (constant(rows, items.shape[1] + after) for after in (0, 2))
        positions = torch.cat([running(self.supervision, at_sum, digit_places), at_key], dim=1)
        targets = torch.cat([running(self.supervision, sums[:, -1:], sums), answer], dim=1)
        sum_count = targets.shape[1] - 1
        return Batch(
            tokens,
            positions,
            targets,
            {"sum": slice(0, sum_count), "recall": slice(sum_count, sum_count + 1)},
        )

    def _places(self, key: int | Tensor, rows: Tensor, digits: int, pairs: int) -> tuple[Tensor, Tensor]:
        """Return the token positions of the digits (B, digits) and of the pairs' keys (B, pairs)."""
        count = rows.shape[0]
        if self.order == "interleaved":
            # A random order of the items: the ranks below `digits` are digits.
            shuffled = words(key, rows, ORDER, digits + pairs).argsort(dim=1, stable=True)
            is_pair = shuffled >= digits
            starts = (is_pair + 1).cumsum(dim=1) - (is_pair + 1)
            kind_first = is_pair.long().argsort(dim=1, stable=True)  # item numbers: all digits, then all pairs
            starts = starts.gather(1, kind_first)
            return starts[:, :digits], starts[:, digits:]
        digits_first = self.order == "digits-first"
        digit_places = torch.arange(digits, device=rows.device) + (0 if digits_first else 2 * pairs)
        pair_places = 2 * torch.arange(pairs, device=rows.device) + (digits if digits_first else 0)
        return digit_places.expand(count, digits), pair_places.expand(count, pairs)
