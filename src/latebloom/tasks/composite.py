"""State tracking and recall in one sequence: the main task of the paper."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from latebloom.fields import at_least
from latebloom.tasks.digits_and_pairs import DigitsAndPairs


@dataclass(frozen=True, kw_only=True)
class Composite(DigitsAndPairs):
    """ceil(L/2) digits and floor(L/2) key-value pairs, then SUM, then ASK and a key. Both answers must be right.

    length 5, modulus 5, digits-first

        tokens   3 4 1  k7 v2 k1 v9  SUM  ASK k1
        outcome                      3        v9
        aligned  3 2 3               3        v9
    """

    answers: ClassVar = ("sum", "recall")
    state_answer: ClassVar = "sum"
    markers: ClassVar = ("SUM", "ASK")

    name: Literal["composite"] = "composite"
    modulus: Annotated[int, at_least(2)] = 10
    """Digits are 0 to m-1, and so is their sum."""

    @property
    def digits(self) -> int:
        return self.modulus

    @property
    def carried_modulus(self) -> int:
        return self.modulus
