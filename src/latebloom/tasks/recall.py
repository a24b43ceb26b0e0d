"""Associative recall alone: the value of a key."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.pieces import batch_of, constant, draw_pairs
from latebloom.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class Recall(KeyedTask):
    """Distinct keys, each followed by its value, then ASK and one of the keys; the answer is its value.

    tokens   k7 v2 k1 v9  ASK k7
    answer                    v2
    """

    answers: ClassVar = ("recall",)
    markers: ClassVar = ("ASK",)

    name: Literal["recall"] = "recall"
    keys: Annotated[int, at_least(2)] = 512
    """Number of keys, of which a sequence of length L has L; with keys of two tokens, the tokens at each place."""

    @property
    def chance(self) -> dict[str, float]:
        return {"recall": 1 / self.values}

    def keys_needed(self, length: int) -> int:
        return length

    def token_count(self, length: int) -> int:
        return (self.key_tokens + 1) * length + 1 + self.key_tokens

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        size = self.key_tokens + 1
        pairs = {tuple(tokens[at : at + size - 1]): tokens[at + size - 1] for at in range(0, len(tokens) - size, size)}
        return {"recall": pairs[tuple(tokens[1 - size :])]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        keys, values, query, answer = draw_pairs(key, rows, length, self.vocabulary)
        pairs = torch.cat([keys, values[:, :, None]], dim=2).flatten(1)
        tokens = torch.cat([pairs, constant(rows, self.vocabulary.marker("ASK")), query], dim=1)
        return batch_of(tokens, {"recall": (constant(rows, tokens.shape[1] - 1), answer)})
