"""The base of tasks that ask for a state, which digits change, and for the value of a key.

Shapes: B sequences, N digits, M pairs, W tokens of a key.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.tasks.keyed import KeyedTask
from latebloom.tasks.layout import first_tokens, items_of_kinds, random_kinds, write_items
from latebloom.tasks.pieces import ORDER, batch_of, constant, draw_digits, draw_pairs
from latebloom.tasks.task import Batch, Supervision


@dataclass(frozen=True, kw_only=True)
class DigitsAndPairs(KeyedTask):
    """ceil(L/2) digits and floor(L/2) key-value pairs, then a marker for each answer, and a key after the second.

    The state is the sum of the digits modulo their number, unless a task defines another.
    """

    shortest: ClassVar = 2

    order: Literal["digits-first", "pairs-first", "interleaved"] = "digits-first"
    """The order of digits and pairs; interleaved is random, with each pair kept together."""
    supervision: Supervision = "aligned"
    """Supervise the state after every digit as well (aligned), or the two answers alone (outcome)."""

    @property
    def chance(self) -> dict[str, float]:
        return {self.answers[0]: 1 / self.digits, "recall": 1 / self.values}

    def slot_of(self, state: int) -> list[int]:
        """Return the tokens that stand between the key and the value that is asked for."""
        return []

    @property
    def pair_tokens(self) -> int:
        """The number of tokens of a pair."""
        return self.key_tokens + len(self.slot_of(0)) + 1

    def keys_needed(self, length: int) -> int:
        return length // 2

    def token_count(self, length: int) -> int:
        return (length + 1) // 2 + self.pair_tokens * (length // 2) + 2 + self.key_tokens

    def state_after(self, digits: list[int]) -> int:
        """Return the state after these digits, in plain Python."""
        return sum(digits) % self.digits

    def oracle(self, tokens: list[int]) -> dict[str, int]:
        items, key = tokens[: -2 - self.key_tokens], tokens[-self.key_tokens :]
        state = self.state_after([token for token in items if token < self.digits])
        wanted = [*key, *self.slot_of(state)]
        place = next(at for at in range(len(items)) if items[at : at + len(wanted)] == wanted)
        return {self.answers[0]: state, "recall": items[place + len(wanted)]}

    def draw_digits(self, key: int | Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return digits and the state after each, (B, N)."""
        return draw_digits(key, rows, count, self.digits)

    def draw_items(
        self, key: int | Tensor, rows: Tensor, counts: tuple[int, int]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor, Tensor]:
        """Return digits and states (B, N), the parts of the pairs (B, M, ...), and the key and value of the query."""
        *pairs, query, answer = draw_pairs(key, rows, counts[1], self.vocabulary)
        return *self.draw_digits(key, rows, counts[0]), tuple(pairs), query, answer

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        counts = (length + 1) // 2, length // 2
        digits, states, pairs, query, answer = self.draw_items(key, rows, counts)
        digit_places, pair_places = self._arrange(key, rows, counts)
        end = counts[0] + self.pair_tokens * counts[1]
        items = write_items(end, (digit_places, digits), (pair_places, *pairs))
        markers = [constant(rows, self.vocabulary.marker(name)) for name in self.markers]
        queries = {
            self.answers[0]: (
                torch.cat([digit_places, constant(rows, end)], dim=1),
                torch.cat([states, states[:, -1:]], dim=1),
            ),
            "recall": (constant(rows, end + 1 + self.key_tokens), answer),
        }
        return batch_of(torch.cat([items, *markers, query], dim=1), queries, self.supervision)

    def _arrange(self, key: int | Tensor, rows: Tensor, counts: tuple[int, int]) -> list[Tensor]:
        """Return the positions of the first tokens of digits (B, N) and of pairs (B, M)."""
        if self.order == "interleaved":
            kinds = random_kinds(key, rows, ORDER, counts)
            starts = first_tokens(kinds, (1, self.pair_tokens))
            return [starts.gather(1, items) for items in items_of_kinds(kinds, counts)]
        digits, pairs = (torch.arange(count, device=rows.device) for count in counts)
        pairs = pairs * self.pair_tokens
        if self.order == "digits-first":
            pairs = pairs + counts[0]
        else:
            digits = digits + self.pair_tokens * counts[1]
        return [places.expand(rows.shape[0], -1) for places in (digits, pairs)]
