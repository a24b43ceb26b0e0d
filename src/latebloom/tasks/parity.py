"""The base of tasks that mix the parity of bits with a memory that is written and read.

Shapes: B sequences, L items, W tokens of a key.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import first_tokens, items_of_kinds, write_items
from latebloom.tasks.pieces import DIGITS, Score, batch_of, keys_at, scored
from latebloom.tasks.random import integers
from latebloom.tasks.task import Batch, Supervision

BIT, WRITE, READ = range(3)
"""The kinds of items: a bit, `W key value` and `R key`."""


@dataclass(frozen=True, kw_only=True)
class ParityTask(KeyedTask):
    """Half of the items are bits, a quarter each are writes and reads. A bit asks for the parity, a read for a value.

    Every sequence of a length has the same number of each, so that all have the same number of tokens and queries.
    """

    fixed_bits: ClassVar[int] = 0
    """Bits at the start that are the same in every sequence, so that the parity after them is not asked."""
    answers: ClassVar = ("parity", "recall")
    state_answer: ClassVar = "parity"
    markers: ClassVar = ("W", "R")
    shortest: ClassVar = 4

    supervision: Supervision = "aligned"
    """Supervise the parity at every bit and the value at every read (aligned), or the last of each (outcome)."""
    score: Score = "every"
    """Count every query that is supervised, or the last parity and the last read."""

    @property
    def digits(self) -> int:
        return 2

    @property
    def chance(self) -> dict[str, float]:
        return {"parity": 1 / 2, "recall": 1 / self.values}

    def counts(self, length: int) -> tuple[int, int, int]:
        """Return the number of bits, writes and reads."""
        bits = (length + 1) // 2
        reads = (length - bits) // 2
        return bits, length - bits - reads, reads

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The number of tokens of a bit, a write and a read."""
        return 1, self.key_tokens + 2, self.key_tokens + 1

    def token_count(self, length: int) -> int:
        return sum(count * size for count, size in zip(self.counts(length), self.sizes, strict=True))

    def parse(self, tokens: list[int]) -> list[tuple[int, ...]]:
        """Return the items of a sequence as (kind, bit), (kind, *key, value) or (kind, *key), in plain Python."""
        items, place = [], 0
        kinds = {self.vocabulary.marker("W"): WRITE, self.vocabulary.marker("R"): READ}
        while place < len(tokens):
            kind = kinds.get(tokens[place], BIT)
            end = place + self.sizes[kind]
            items.append((kind, *tokens[place + (kind != BIT) : end]))
            place = end
        return items

    def answered(self, parities: list[int], values: list[int]) -> dict[str, int | list[int]]:
        """Return what the oracle says, from the parity after every bit and the value at every read."""
        named = {"parity": parities[self.fixed_bits :], "recall": values}
        return {name: scored(queries, self.supervision, self.score) for name, queries in named.items()}

    def draw_bits(self, key: int | Tensor, rows: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Return bits and the parity so far (B, L), at every item; only those at bits are shown."""
        bits = integers(key, rows, DIGITS, kinds.shape[1], 2)
        return bits, torch.where(kinds == BIT, bits, 0).cumsum(dim=1) % 2

    def assemble(self, kinds: Tensor, bits: Tensor, parity: Tensor, keys: Tensor, values: Tensor) -> Batch:
        """Return a batch from what stands at every item: kind, bit, parity so far (B, L), key tokens (B, L, W), and the
        value token (B, L) that a write writes and a read returns."""
        length = kinds.shape[1]
        starts = first_tokens(kinds, self.sizes)
        at_bits, at_writes, at_reads = items_of_kinds(kinds, self.counts(length))
        marker = self.vocabulary.marker
        tokens = write_items(
            self.token_count(length),
            (starts.gather(1, at_bits), bits.gather(1, at_bits)),
            (starts.gather(1, at_writes), marker("W"), keys_at(keys, at_writes), values.gather(1, at_writes)),
            (starts.gather(1, at_reads), marker("R"), keys_at(keys, at_reads)),
        )
        asked = at_bits[:, self.fixed_bits :]
        queries = {
            "parity": (starts.gather(1, asked), parity.gather(1, asked)),
            "recall": (starts.gather(1, at_reads) + self.key_tokens, values.gather(1, at_reads)),
        }
        return batch_of(tokens, queries, self.supervision, self.score)
