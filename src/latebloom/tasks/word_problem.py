"""State tracking in a group: the product of its elements."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
from math import factorial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.errors import require, unknown
from latebloom.tasks.permutations import cycle, rank, running_product, unrank, unrank_even
from latebloom.tasks.pieces import MOVES, Score, batch_of, scored
from latebloom.tasks.random import integers
from latebloom.tasks.task import Batch, Supervision, Task

PERMUTATIONS = ("S3", "S4", "S5", "A4", "A5")


@dataclass(frozen=True, kw_only=True)
class WordProblem(Task):
    """Elements of a group; the answer is their product.

    A permutation is written as its images: 120 takes 0 to 1, 1 to 2 and 2 to 0. The product p q takes i to p[q[i]].

    group S3    tokens   120  021  210
                outcome            201
                aligned  120  102  201
    """

    answers: ClassVar = ("product",)
    state_answer: ClassVar = "product"

    name: Literal["word_problem"] = "word_problem"
    group: str = "S3"
    """S3, S4 or S5 (all permutations), A4 or A5 (the even ones), or Zn (addition modulo n, such as Z60)."""
    moves: Literal["all", "generators"] = "all"
    """Draw all elements, or generators only: swaps of two points in Sn, cycles of three in An, 1 and n-1 in Zn."""
    supervision: Supervision = "aligned"
    """Supervise the product at every element (aligned), or at the last alone (outcome)."""
    score: Score = "last"
    """Count the last product alone, or every one that is supervised."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group not in PERMUTATIONS:
            if not re.fullmatch(r"Z\d+", self.group):
                raise unknown("group", self.group, (*PERMUTATIONS, "Z2", "Z3", "Z4", "... for addition modulo n"))
            require(self.points >= 2, "group", self.group, "Zn with an n of 2 or more")
            is_random = self.moves == "all" or self.points > 2
            require(is_random, "moves", self.moves, "all for Z2, which has one generator")

    @property
    def points(self) -> int:
        """The n of Sn, An or Zn."""
        return int(self.group[1:])

    @property
    def order(self) -> int:
        """The number of elements."""
        return {"Z": self.points, "S": factorial(self.points), "A": factorial(self.points) // 2}[self.group[0]]

    @cached_property
    def elements(self) -> list[tuple[int, ...]]:
        """The permutations in the order of their token numbers; empty for Zn."""
        if self.group[0] == "Z":
            return []
        found = permutations(range(self.points))
        return [p for p in found if self.group[0] == "S" or sum(a > b for a, b in combinations(p, 2)) % 2 == 0]

    @property
    def vocabulary_size(self) -> int:
        return self.order

    @property
    def chance(self) -> dict[str, float]:
        """The accuracy of guessing in long sequences; generators that are all odd leave half of the elements."""
        is_odd = self.group[0] == "S" or (self.group[0] == "Z" and self.points % 2 == 0)
        return {"product": (2 if is_odd and self.moves == "generators" else 1) / self.order}

    def token_count(self, length: int) -> int:
        return length

    def spell(self, token: int) -> str:
        return "".join(map(str, self.elements[token])) if self.elements else str(token)

    def oracle(self, tokens: list[int]) -> dict[str, int | list[int]]:
        product, found = 0, []  # the identity has number 0 in every group
        for token in tokens:
            if self.elements:
                left, right = self.elements[product], self.elements[token]
                product = self.elements.index(tuple(left[image] for image in right))
            else:
                product = (product + token) % self.points
            found.append(product)
        return {"product": scored(found, self.supervision, self.score)}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        tokens, products = self._draw_sums(key, rows, length) if self.group[0] == "Z" else self._draw(key, rows, length)
        places = torch.arange(length, device=rows.device).expand(rows.shape[0], -1)
        return batch_of(tokens, {"product": (places, products)}, self.supervision, self.score)

    def _draw_sums(self, key: int | Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return elements of Zn and their running sums (B, L)."""
        n = self.points
        if self.moves == "all":
            tokens = integers(key, rows, MOVES, length, n)
        else:
            tokens = 1 + (n - 2) * integers(key, rows, MOVES, length, 2)
        return tokens, tokens.cumsum(dim=1) % n

    def _draw(self, key: int | Tensor, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return permutations and their running products (B, L), as token numbers."""
        n, is_even = self.points, self.group[0] == "A"
        if self.moves == "generators":
            points = unrank(integers(key, rows, MOVES, length, factorial(n)), n)
            steps = cycle(points[..., : 3 if is_even else 2], n)
        else:
            steps = (unrank_even if is_even else unrank)(integers(key, rows, MOVES, length, self.order), n)
        tokens, products = rank(steps), rank(running_product(steps))
        return (tokens // 2, products // 2) if is_even else (tokens, products)
