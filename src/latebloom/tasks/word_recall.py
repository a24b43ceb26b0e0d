"""State tracking in a group and recall in one sequence: composite with a product in the place of the sum."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from torch import Tensor

from latebloom.tasks.digits_and_pairs import DigitsAndPairs
from latebloom.tasks.word_problem import WordProblem


@dataclass(frozen=True, kw_only=True)
class WordRecall(DigitsAndPairs):
    """ceil(L/2) elements of a group and floor(L/2) key-value pairs, then END, then ASK and a key.

    The answers are the product of the elements, as in word_problem, and the value of the key.

    length 5, S3   tokens   120 021 210  k7 v2 k1 v9  END  ASK k1
                   outcome                            201      v9
                   aligned  120 102 201               201      v9
    """

    answers: ClassVar = ("product", "recall")
    state_answer: ClassVar = "product"
    markers: ClassVar = ("END", "ASK")

    name: Literal["word_recall"] = "word_recall"
    group: str = "S3"
    """S3, S4 or S5 (all permutations), A4 or A5 (the even ones), or Zn (addition modulo n, such as Z60)."""
    moves: Literal["all", "generators"] = "all"
    """Draw all elements, or generators only: swaps of two points in Sn, cycles of three in An, 1 and n-1 in Zn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.words  # checks the group

    @cached_property
    def words(self) -> WordProblem:
        """The elements, which stand in the place of digits, and their products."""
        return WordProblem(group=self.group, moves=self.moves)

    @property
    def digits(self) -> int:
        return self.words.order

    @property
    def chance(self) -> dict[str, float]:
        return super().chance | self.words.chance

    def spell(self, token: int) -> str:
        return self.words.spell(token) if token < self.digits else super().spell(token)

    def state_after(self, digits: list[int]) -> int:
        product = self.words.oracle(digits)["product"]
        assert isinstance(product, int)
        return product

    def draw_digits(self, key: int | Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        word = self.words.draw(key, rows, count)
        return word.tokens, word.targets
