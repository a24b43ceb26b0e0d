"""Parity with recall queries in between, independent of the parity or coupled with it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from latebloom.tasks.layout import insert, pick_write, random_kinds, writes_and_reads
from latebloom.tasks.parity import BIT, READ, WRITE, ParityTask
from latebloom.tasks.pieces import KINDS, ORDER, QUERY, draw_keys, draw_values, keys_at
from latebloom.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class ParityRecall(ParityTask):
    """Bits, writes of distinct keys and reads of written keys, mixed; parity after each bit, a value at each read.

    64 values   tokens            1  W k7 v2  1  R k7  0  1  W k1 v9  R k7
                aligned           1           0    v2  0  1             v2
                aligned, coupled  1           0    v2  0  1             v3
                outcome                                   1             v2
    """

    name: Literal["parity_recall"] = "parity_recall"
    coupled: bool = False
    """The answer at a read is the value plus the parity, modulo the number of values, instead of the value."""

    @property
    def carried_modulus(self) -> int | None:
        return None if self.coupled else 2

    def keys_needed(self, length: int) -> int:
        return self.counts(length)[1]

    def oracle(self, tokens: list[int]) -> dict[str, int | list[int]]:
        parity, memory, parities, values = 0, {}, [], []
        for kind, *item in self.parse(tokens):
            if kind == BIT:
                parity = (parity + item[0]) % 2
                parities.append(parity)
            elif kind == WRITE:
                *name, value = item
                memory[tuple(name)] = value - self.vocabulary.first_value
            else:
                value = (memory[tuple(item)] + self.coupled * parity) % self.values
                values.append(value + self.vocabulary.first_value)
        return self.answered(parities, values)

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        bits, writes, reads = self.counts(length)
        mixed = random_kinds(key, rows, ORDER, (bits, writes + reads))
        kinds = insert(mixed, WRITE, WRITE + writes_and_reads(key, rows, KINDS, writes, reads))
        shown, parity = self.draw_bits(key, rows, kinds)
        is_write = kinds == WRITE
        own = (is_write.long().cumsum(dim=1) - 1).clamp(min=0)  # the number of the last key that was written
        read = pick_write(key, rows, QUERY, is_write)
        slots = torch.where(kinds == READ, own.gather(1, read), own)
        values = draw_values(key, rows, length, self.vocabulary)
        recalled = values.gather(1, read)
        if self.coupled:
            first = self.vocabulary.first_value
            recalled = (recalled - first + parity) % self.values + first
        keys = draw_keys(key, rows, writes, self.vocabulary)
        return self.assemble(kinds, shown, parity, keys_at(keys, slots), torch.where(kinds == READ, recalled, values))
