"""Associative recall alone: the value of a key."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.pieces import Vocabulary, constant, draw_pairs
from latebloom.tasks.task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """Distinct keys, each followed by its value, then ASK and one of the keys; the answer is its value.

    tokens   k7 v2 k1 v9  ASK k7
    answer                    v2
    """

    answers: ClassVar = ("recall",)

    name: Literal["recall"] = "recall"
    keys: Annotated[int, at_least(2)] = 512
    """Number of keys; a sequence of length L has L of them."""
    values: Annotated[int, at_least(2)] = 64
    """Number of values; several keys may have the same value."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(keys=self.keys, values=self.values, markers=("ASK",))

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    @property
    def chance(self) -> dict[str, float]:
        return {"recall": 1 / self.values}

    @property
    def longest(self) -> int:
        return self.keys

    def keys_needed(self, length: int) -> int:
        return length

    def token_count(self, length: int) -> int:
        return 2 * length + 2

    def spell(self, token: int) -> str:
        return self.vocabulary.spell(token)

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        *pairs, _, key = tokens
        return {"recall": dict(zip(pairs[::2], pairs[1::2], strict=True))[key]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        keys, values, query, answer = draw_pairs(key, rows, length, self.vocabulary)
        pairs = torch.stack([keys, values], dim=2).flatten(1)
        tokens = torch.cat([pairs, constant(rows, self.vocabulary.marker("ASK")), query], dim=1)
        last = constant(rows, self.token_count(length) - 1)
        return Batch(tokens, last, answer, {"recall": slice(0, 1)})
