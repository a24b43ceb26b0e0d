"""State that depends on recall: a running sum over recalled values."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.pieces import QUERY, Score, batch_of, constant, draw_keys, draw_values, keys_at, scored
from latebloom.tasks.random import integers
from latebloom.tasks.task import Batch, Supervision


@dataclass(frozen=True, kw_only=True)
class CoupledValue(KeyedTask):
    """ceil(L/2) key-value pairs, then ADD and floor(L/2) of the keys; the answer is the sum of their values modulo m.

    A recurrence cannot learn the sum while attention, which recalls the values, is disabled.

    length 5, 5 values   tokens   k7 v3 k1 v4 k9 v0  ADD  k1 k7
                         outcome                             v2
                         aligned                          v4 v2
    """

    answers: ClassVar = ("sum",)
    state_answer: ClassVar = "sum"
    markers: ClassVar = ("ADD",)
    shortest: ClassVar = 2

    name: Literal["coupled_value"] = "coupled_value"
    values: Annotated[int, at_least(2)] = 10
    """Values are v0 to v(m-1), and so is their sum modulo m."""
    supervision: Supervision = "aligned"
    """Supervise the running sum at every key (aligned), or at the last alone (outcome)."""
    score: Score = "last"
    """Count the last sum alone, or every one that is supervised."""

    @property
    def chance(self) -> dict[str, float]:
        return {"sum": 1 / self.values}

    def keys_needed(self, length: int) -> int:
        return (length + 1) // 2

    def token_count(self, length: int) -> int:
        return (self.key_tokens + 1) * ((length + 1) // 2) + 1 + self.key_tokens * (length // 2)

    def oracle(self, tokens: list[int]) -> dict[str, int | list[int]]:
        size, middle = self.key_tokens, tokens.index(self.vocabulary.marker("ADD"))
        memory = {tuple(tokens[at : at + size]): tokens[at + size] for at in range(0, middle, size + 1)}
        total, sums, first = 0, [], self.vocabulary.first_value
        for place in range(middle + 1, len(tokens), size):
            total = (total + memory[tuple(tokens[place : place + size])] - first) % self.values
            sums.append(total + first)
        return {"sum": scored(sums, self.supervision, self.score)}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        pairs, reads, first = (length + 1) // 2, length // 2, self.vocabulary.first_value
        keys, values = draw_keys(key, rows, pairs, self.vocabulary), draw_values(key, rows, pairs, self.vocabulary)
        read = integers(key, rows, QUERY, reads, pairs)
        sums = (values.gather(1, read) - first).cumsum(dim=1) % self.values + first
        written = torch.cat([keys, values[:, :, None]], dim=2).flatten(1)
        add = constant(rows, self.vocabulary.marker("ADD"))
        tokens = torch.cat([written, add, keys_at(keys, read).flatten(1)], dim=1)
        places = written.shape[1] + self.key_tokens * torch.arange(1, reads + 1, device=rows.device)
        return batch_of(tokens, {"sum": (places.expand(rows.shape[0], -1), sums)}, self.supervision, self.score)
