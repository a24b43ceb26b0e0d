"""State tracking in a group and recall in one sequence: composite with a product in the place of the sum."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.tasks.composite import Order, arrange
from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import write_items
from latebloom.tasks.pieces import ask, constant, draw_pairs
from latebloom.tasks.task import Batch, Supervision
from latebloom.tasks.word_problem import WordProblem


@dataclass(frozen=True, kw_only=True)
class WordRecall(KeyedTask):
    """ceil(L/2) elements of a group and floor(L/2) key-value pairs, then END, then ASK and a key.

    The answers are the product of the elements, as in word_problem, and the value of the key.

    length 5, S3   tokens   120 021 210  k7 v2 k1 v9  END  ASK k1
                   outcome                            201      v9
                   aligned  120 102 201               201      v9
    """

    answers: ClassVar = ("product", "recall")
    state_answer: ClassVar = "product"
    shortest: ClassVar = 2

    name: Literal["word_recall"] = "word_recall"
    group: str = "S3"
    """S3, S4 or S5 (all permutations), A4 or A5 (the even ones), or Zn (addition modulo n, such as Z60)."""
    moves: Literal["all", "generators"] = "all"
    """Draw all elements, or generators only: swaps of two points in Sn, cycles of three in An, 1 and n-1 in Zn."""
    order: Order = "digits-first"
    """The order of elements and pairs; interleaved is random, with each pair kept together."""
    supervision: Supervision = "aligned"
    """Supervise the product at every element as well (aligned), or the two answers alone (outcome)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.words  # checks the group

    @cached_property
    def words(self) -> WordProblem:
        """The elements and their products."""
        return WordProblem(group=self.group, moves=self.moves)

    @property
    def markers(self) -> tuple[str, ...]:
        return "END", "ASK"

    @property
    def digits(self) -> int:
        return self.words.order

    @property
    def chance(self) -> dict[str, float]:
        return {"product": self.words.chance["product"], "recall": 1 / self.values}

    def keys_needed(self, length: int) -> int:
        return length // 2

    def token_count(self, length: int) -> int:
        return (length + 1) // 2 + (self.key_tokens + 1) * (length // 2) + 2 + self.key_tokens

    def spell(self, token: int) -> str:
        return self.words.spell(token) if token < self.digits else super().spell(token)

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        size = self.key_tokens
        items, key = tokens[: -2 - size], tokens[-size:]
        product = self.words.oracle([token for token in items if token < self.digits])["product"]
        assert isinstance(product, int)
        place = next(at for at in range(len(items)) if items[at : at + size] == key)
        return {"product": product, "recall": items[place + size]}

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        counts = (length + 1) // 2, length // 2
        word = self.words.draw(key, rows, counts[0])
        keys, values, query, answer = draw_pairs(key, rows, counts[1], self.vocabulary)
        places, pair_places = arrange(key, rows, self.order, counts, (1, self.key_tokens + 1))
        end = counts[0] + (self.key_tokens + 1) * counts[1]
        items = write_items(end, (places, word.tokens), (pair_places, keys, values))
        markers = [constant(rows, self.vocabulary.marker(name)) for name in self.markers]
        return ask(
            torch.cat([items, *markers, query], dim=1),
            {
                "product": (
                    torch.cat([places, constant(rows, end)], dim=1),
                    torch.cat([word.targets, word.targets[:, -1:]], dim=1),
                ),
                "recall": (constant(rows, end + 1 + self.key_tokens), answer),
            },
            self.supervision,
        )
