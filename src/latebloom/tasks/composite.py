"""State tracking and recall in one sequence: the main task of the paper.

Shapes: S stacked streams, B sequences.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from latebloom.fields import at_least
from latebloom.layers.stacking import stackable
from latebloom.tasks.digits_and_pairs import DigitsAndPairs
from latebloom.tasks.pieces import DIGITS, KEYS, QUERY, VALUES
from latebloom.tasks.random import FEW, stream_offset
from latebloom.tasks.task import Batch


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

    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        # A class below this one may define any of the parts in its own way.
        is_plain = type(self) is Composite and self.key_tokens == 1 and self.order != "interleaved"
        if isinstance(key, Tensor) and key.is_cuda and is_plain and length // 2 <= FEW:
            return self.draw_fused(key, rows, length)
        return super().draw(key, rows, length)

    def draw_fused(self, key: Tensor, rows: Tensor, length: int) -> Batch:
        """Draw with one kernel, with the numbers of `draw`."""
        digits, pairs = (length + 1) // 2, length // 2
        tokens, positions, targets = _fused(
            key,
            rows,
            (digits, pairs),
            (0, digits) if self.order == "digits-first" else (2 * pairs, 0),
            (self.modulus, self.keys, self.values),
            (self.vocabulary.first_key, self.vocabulary.first_value),
            tuple(self.vocabulary.marker(name) for name in self.markers),
            tuple(stream_offset(stream) for stream in (DIGITS, KEYS, VALUES, QUERY)),
        )
        first = digits if self.supervision == "outcome" else 0  # only the last sum, and the recall
        columns = {"sum": slice(0, digits + 1 - first), "recall": slice(digits + 1 - first, digits + 2 - first)}
        return Batch(tokens, positions[:, first:], targets[:, first:], columns)


def _stacked(key: Tensor, rows: Tensor, *form: Any) -> tuple[Tensor, Tensor, Tensor]:
    from latebloom.tasks import composite_triton

    return composite_triton.draw(key.contiguous(), rows[0].contiguous(), composite_triton.Form(*form))


def _single(key: Tensor, rows: Tensor, *form: Any) -> tuple[Tensor, Tensor, Tensor]:
    tokens, positions, targets = _stacked(key[None], rows[None], *form)
    return tokens[0], positions[0], targets[0]


_fused = stackable(_single, _stacked)
"""Tokens (B, T), and positions and targets (B, A), for a key () and rows (B,), which stacked streams share."""
