"""Building blocks of the tasks: token numbers, digits with running sums, distinct keys with values, and answers.

Shapes: B sequences, L items, N digits or pairs, W tokens of a key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor

from latebloom.tasks.layout import last_write, pick_write
from latebloom.tasks.random import distinct, distinct_pairs, integers
from latebloom.tasks.task import Batch, Supervision

# Each kind of number is drawn from its own stream, so that a change to one leaves the others as they were.
DIGITS, KEYS, VALUES, QUERY, ORDER, KINDS, MOVES, SLOTS, START = range(9)

Score = Literal["every", "last"]


@dataclass(frozen=True)
class Vocabulary:
    """Token numbers: digits, then keys, then values, then the markers that are used."""

    digits: int = 0
    keys: int = 0
    """Tokens that can stand at each place of a key."""
    values: int = 0
    markers: tuple[str, ...] = ()
    key_tokens: int = 1

    @property
    def first_key(self) -> int:
        return self.digits

    @property
    def first_value(self) -> int:
        return self.digits + self.keys * self.key_tokens

    @property
    def size(self) -> int:
        return self.first_value + self.values + len(self.markers)

    def marker(self, name: str) -> int:
        return self.first_value + self.values + self.markers.index(name)

    def spell(self, token: int) -> str:
        """Return 3 for a digit, k3 for a key (k3 k5' for one of two tokens), v3 for a value, SUM for a marker."""
        if token < self.first_key:
            return str(token)
        if token < self.first_value:
            place, number = divmod(token - self.first_key, self.keys)
            return f"k{number}{chr(39) * place}"
        if token < self.first_value + self.values:
            return f"v{token - self.first_value}"
        return self.markers[token - self.first_value - self.values]


def draw_digits(key: int | Tensor, rows: Tensor, count: int, modulus: int) -> tuple[Tensor, Tensor]:
    """Return digits (B, N) and their running sums (B, N)."""
    digits = integers(key, rows, DIGITS, count, modulus)
    return digits, digits.cumsum(dim=1) % modulus


def draw_keys(key: int | Tensor, rows: Tensor, count: int, vocabulary: Vocabulary) -> Tensor:
    """Return the tokens (B, N, W) of keys that are distinct within a row."""
    if vocabulary.key_tokens == 1:
        return distinct(key, rows, KEYS, count, vocabulary.keys)[:, :, None] + vocabulary.first_key
    pairs = distinct_pairs(key, rows, KEYS, count, vocabulary.keys)
    return pairs + torch.arange(2, device=rows.device) * vocabulary.keys + vocabulary.first_key


def draw_values(key: int | Tensor, rows: Tensor, count: int, vocabulary: Vocabulary) -> Tensor:
    """Return value tokens (B, N)."""
    return integers(key, rows, VALUES, count, vocabulary.values) + vocabulary.first_value


def draw_pairs(
    key: int | Tensor, rows: Tensor, count: int, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return keys (B, N, W), distinct within a row, their values (B, N), and the key (B, W) and value (B, 1) of a
    query."""
    keys, values = draw_keys(key, rows, count, vocabulary), draw_values(key, rows, count, vocabulary)
    query = integers(key, rows, QUERY, 1, count)
    return keys, values, keys_at(keys, query)[:, 0], values.gather(1, query)


def keys_at(keys: Tensor, places: Tensor) -> Tensor:
    """Return the keys (B, M, W) at these places (B, M) of (B, N, W)."""
    return keys.gather(1, places[:, :, None].expand(-1, -1, keys.shape[2]))


def draw_memory(
    key: int | Tensor, rows: Tensor, pool: int, vocabulary: Vocabulary, writes: Tensor, reads: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for every item, its key (B, L, W), the value that it writes, and the last value of the key before (B, L).

    `writes` and `reads` (B, L) say which items write and read. Keys are drawn from a pool, in which they are written
    again; a read has a key that was written.
    """
    slots = integers(key, rows, SLOTS, writes.shape[1], pool)
    slots = torch.where(reads, slots.gather(1, pick_write(key, rows, QUERY, writes)), slots)
    values = draw_values(key, rows, writes.shape[1], vocabulary)
    keys = keys_at(draw_keys(key, rows, pool, vocabulary), slots)
    return keys, values, values.gather(1, last_write(writes, slots))


def batch_of(
    tokens: Tensor,
    answers: Mapping[str, tuple[Tensor, Tensor]],
    supervision: Supervision = "aligned",
    score: Score = "last",
) -> Batch:
    """Return a batch from the positions and targets (B, A) of each answer, in order of time.

    Outcome supervision keeps the last column of each answer.
    """
    first = -1 if supervision == "outcome" else 0
    positions, targets = zip(*answers.values(), strict=True)
    edges = pairwise(accumulate((len(one[0, first:]) for one in positions), initial=0))
    return Batch(
        tokens,
        torch.cat([one[:, first:] for one in positions], dim=1),
        torch.cat([one[:, first:] for one in targets], dim=1),
        {name: slice(*edge) for name, edge in zip(answers, edges, strict=True)},
        tuple(answers) if score == "every" else (),
    )


def scored(queries: list[int], supervision: Supervision, score: Score) -> int | list[int]:
    """Return what an oracle says of an answer, from the answers to all of its queries in order of time."""
    asked = queries if supervision == "aligned" else queries[-1:]
    return asked if score == "every" else asked[-1]


def constant(like: Tensor, value: int) -> Tensor:
    """Return a column (B, 1) of one number, for the rows of `like`."""
    return torch.full((like.shape[0], 1), value, dtype=torch.int64, device=like.device)
