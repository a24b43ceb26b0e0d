"""Recall of the last value that counted: a write counts only while the parity of the bits so far is 1."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.tasks.layout import random_kinds
from latebloom.tasks.parity import BIT, READ, WRITE, ParityTask
from latebloom.tasks.pieces import ORDER, constant, draw_memory
from latebloom.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class ConditionalMQAR(ParityTask):
    """Bits, writes and reads; a write counts only while the parity is 1, and the last that counted is read.

    A sequence begins with the bit 1 and a write, so that every read has an answer. There are half as many keys as
    writes, so most keys are written several times.

    tokens   1  W k7 v2  1  W k7 v5  R k7  0  1  R k7
    aligned              0             v2  0  1    v2
    outcome                                   1    v2
    """

    fixed_bits: ClassVar = 1

    name: Literal["conditional_mqar"] = "conditional_mqar"

    def keys_needed(self, length: int) -> int:
        return (self.counts(length)[1] + 1) // 2

    def oracle(self, tokens: list[int]) -> dict[str, int | list[int]]:
        parity, memory, parities, values = 0, {}, [], []
        for kind, *item in self.parse(tokens):
            if kind == BIT:
                parity = (parity + item[0]) % 2
                parities.append(parity)
            elif kind == READ:
                values.append(memory[tuple(item)])
            elif parity == 1:
                *name, memory[tuple(name)] = item
        return self.answered(parities, values)

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        bits, writes, reads = self.counts(length)
        rest = random_kinds(key, rows, ORDER, (bits - 1, writes - 1, reads))
        kinds = torch.cat([constant(rows, BIT), constant(rows, WRITE), rest], dim=1)
        shown, parity = self.draw_bits(key, rows, kinds)
        flip = 1 - shown[:, :1]  # the first bit is 1
        shown, parity = torch.cat([shown[:, :1] + flip, shown[:, 1:]], dim=1), (parity + flip) % 2

        counts, is_read = (kinds == WRITE) & (parity == 1), kinds == READ
        keys, values, recalled = draw_memory(key, rows, self.keys_needed(length), self.vocabulary, counts, is_read)
        return self.assemble(kinds, shown, parity, keys, torch.where(is_read, recalled, values))
