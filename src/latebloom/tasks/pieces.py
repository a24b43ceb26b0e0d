"""Building blocks of the tasks: digits with running sums, and distinct keys with values.

Shapes: B sequences, N digits or pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from latebloom.tasks.random import distinct, integers

# Each kind of number is drawn from its own stream, so that a change to one leaves the others as they were.
DIGITS, KEYS, VALUES, QUERY, ORDER = range(5)


@dataclass(frozen=True)
class Vocabulary:
    """Token numbers: digits, then keys, then values, then the markers that are used."""

    modulus: int = 0
    keys: int = 0
    values: int = 0
    markers: tuple[str, ...] = ()

    @property
    def first_key(self) -> int:
        return self.modulus

    @property
    def first_value(self) -> int:
        return self.modulus + self.keys

    @property
    def size(self) -> int:
        return self.first_value + self.values + len(self.markers)

    def marker(self, name: str) -> int:
        return self.first_value + self.values + self.markers.index(name)

    def spell(self, token: int) -> str:
        """Return 3 for a digit, k3 for a key, v3 for a value, SUM for a marker."""
        if token < self.first_key:
            return str(token)
        if token < self.first_value:
            return f"k{token - self.first_key}"
        if token < self.first_value + self.values:
            return f"v{token - self.first_value}"
        return self.markers[token - self.first_value - self.values]


def draw_digits(key: int | Tensor, rows: Tensor, count: int, modulus: int) -> tuple[Tensor, Tensor]:
    """Return digits (B, N) and their running sums (B, N)."""
    digits = integers(key, rows, DIGITS, count, modulus)
    return digits, digits.cumsum(dim=1) % modulus


def draw_pairs(
    key: int | Tensor, rows: Tensor, count: int, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return keys (B, N), distinct within a row, their values (B, N), and the key and value (B, 1) of a query."""
    keys = distinct(key, rows, KEYS, count, vocabulary.keys) + vocabulary.first_key
    values = integers(key, rows, VALUES, count, vocabulary.values) + vocabulary.first_value
    query = integers(key, rows, QUERY, 1, count)
    return keys, values, keys.gather(1, query), values.gather(1, query)


def running(supervision: str, outcome: Tensor, each: Tensor) -> Tensor:
    """Return the columns of intermediate answers and of the outcome (B, 1), or of the outcome alone."""
    return torch.cat([each, outcome], dim=1) if supervision == "aligned" else outcome


def constant(like: Tensor, value: int) -> Tensor:
    """Return a column (B, 1) of one number, for the rows of `like`."""
    return torch.full((like.shape[0], 1), value, dtype=torch.int64, device=like.device)
