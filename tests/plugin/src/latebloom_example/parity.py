"""The parity of a bit string."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.tasks import Batch, Task
from latebloom.tasks.random import integers


@dataclass(frozen=True, kw_only=True)
class Parity(Task):
    """Bits, then =; the answer is whether the number of ones is odd.

    tokens   1 0 1 1 =
    answer           1
    """

    answers: ClassVar = ("parity",)
    state_answer: ClassVar = "parity"

    name: Literal["parity"] = "parity"

    @property
    def vocabulary_size(self) -> int:
        return 3

    @property
    def chance(self) -> dict[str, float]:
        return {"parity": 0.5}

    def token_count(self, length: int) -> int:
        return length + 1

    def spell(self, token: int) -> str:
        return "01="[token]

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        return {"parity": tokens.count(1) % 2}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        bits = integers(key, rows, 0, length, 2)  # stream 0; other numbers of a sequence take other streams
        marker = torch.full((rows.shape[0], 1), 2, device=rows.device)
        last = torch.full_like(marker, length)
        answer = bits.sum(dim=1, keepdim=True) % 2
        return Batch(torch.cat([bits, marker], dim=1), last, answer, {"parity": slice(0, 1)})
