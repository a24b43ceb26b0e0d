"""Multi-query associative recall in which keys are written again: the last value counts."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import first_tokens, items_of_kinds, write_items, writes_and_reads
from latebloom.tasks.pieces import ORDER, Score, batch_of, draw_memory, keys_at, scored
from latebloom.tasks.task import Batch, Supervision


@dataclass(frozen=True, kw_only=True)
class MQAR(KeyedTask):
    """ceil(L/2) writes of keys and floor(L/2) reads of written keys, mixed; a read asks for the last value of its key.

    There are half as many keys as writes, so most keys are written several times.

    length 7   tokens   k7 v2  ASK k7  k1 v9  k7 v5  ASK k1  k7 v3  ASK k7
               aligned             v2                    v9             v3
               outcome                                                  v3
    """

    answers: ClassVar = ("recall",)
    markers: ClassVar = ("ASK",)
    shortest: ClassVar = 2

    name: Literal["mqar"] = "mqar"
    supervision: Supervision = "aligned"
    """Supervise every read (aligned), or the last alone (outcome)."""
    score: Score = "every"
    """Count every read that is supervised, or the last alone."""

    @property
    def chance(self) -> dict[str, float]:
        return {"recall": 1 / self.values}

    def keys_needed(self, length: int) -> int:
        return ((length + 1) // 2 + 1) // 2

    def token_count(self, length: int) -> int:
        return (self.key_tokens + 1) * length  # reads have a marker where writes have a value

    def oracle(self, tokens: list[int]) -> dict[str, int | list[int]]:
        size, memory, values = self.key_tokens + 1, {}, []
        for place in range(0, len(tokens), size):
            item = tokens[place : place + size]
            if item[0] == self.vocabulary.marker("ASK"):
                values.append(memory[tuple(item[1:])])
            else:
                *name, memory[tuple(name)] = item
        return {"recall": scored(values, self.supervision, self.score)}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        counts, size = ((length + 1) // 2, length // 2), self.key_tokens + 1
        kinds = writes_and_reads(key, rows, ORDER, *counts)
        pool = self.keys_needed(length)
        keys, values, recalled = draw_memory(key, rows, pool, self.vocabulary, kinds == 0, kinds == 1)

        starts = first_tokens(kinds, (size, size))
        at_writes, at_reads = items_of_kinds(kinds, counts)
        tokens = write_items(
            self.token_count(length),
            (starts.gather(1, at_writes), keys_at(keys, at_writes), values.gather(1, at_writes)),
            (starts.gather(1, at_reads), self.vocabulary.marker("ASK"), keys_at(keys, at_reads)),
        )
        reads = starts.gather(1, at_reads) + self.key_tokens, recalled.gather(1, at_reads)
        return batch_of(tokens, {"recall": reads}, self.supervision, self.score)
