"""State tracking alone: the sum of digits modulo m."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from latebloom.fields import at_least
from latebloom.tasks.pieces import Vocabulary, batch_of, constant, draw_digits
from latebloom.tasks.task import Batch, Supervision, Task


@dataclass(frozen=True, kw_only=True)
class ModularSum(Task):
    """Digits, then SUM; the answer at SUM is their sum modulo m.

    modulus 5    tokens   3  4  1  SUM
                 outcome           3
                 aligned  3  2  3  3
    """

    answers: ClassVar = ("sum",)
    state_answer: ClassVar = "sum"

    name: Literal["modular_sum"] = "modular_sum"
    modulus: Annotated[int, at_least(2)] = 10
    """Digits are 0 to m-1, and so is their sum."""
    supervision: Supervision = "aligned"
    """Supervise the running sum at every digit as well (aligned), or the answer alone (outcome)."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(digits=self.modulus, markers=("SUM",))

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    @property
    def carried_modulus(self) -> int:
        return self.modulus

    @property
    def chance(self) -> dict[str, float]:
        return {"sum": 1 / self.modulus}

    def token_count(self, length: int) -> int:
        return length + 1

    def spell(self, token: int) -> str:
        return self.vocabulary.spell(token)

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        return {"sum": sum(tokens[:-1]) % self.modulus}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        digits, sums = draw_digits(key, rows, length, self.modulus)
        tokens = torch.cat([digits, constant(rows, self.vocabulary.marker("SUM"))], dim=1)
        places = torch.arange(length + 1, device=rows.device).expand(rows.shape[0], -1)
        return batch_of(tokens, {"sum": (places, torch.cat([sums, sums[:, -1:]], dim=1))}, self.supervision)
