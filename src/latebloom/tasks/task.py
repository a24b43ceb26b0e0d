"""What a task is: sequences with named answers, and the registry of tasks by name.

Shapes: B sequences, T tokens, A asked answers, L items (the length).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.choice import Chosen
from latebloom.errors import ConfigError
from latebloom.tasks.counter import fold

Split = Literal["train", "validation", "test"]
Supervision = Literal["aligned", "outcome"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Batch:
    """Sequences of one length and what is asked of them."""

    tokens: Tensor
    """(B, T) token numbers."""
    positions: Tensor
    """(B, A) the token positions at which an answer is asked."""
    targets: Tensor
    """(B, A) the right answers, as token numbers."""
    columns: dict[str, slice]
    """The columns of A that ask for each named answer; the last column of each is the one that is scored."""

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)"""
        sequences, tokens = self.tokens.shape
        return sequences, tokens

    def without(self, names: Iterable[str]) -> "Batch":
        """The same sequences, not asked for these answers."""
        kept = {name: columns for name, columns in self.columns.items() if name not in set(names)}
        if len(kept) == len(self.columns):
            return self
        columns: dict[str, slice] = {}
        first = 0
        for name, old in kept.items():
            count = old.stop - old.start
            columns[name] = slice(first, first + count)
            first += count
        positions = torch.cat([self.positions[:, old] for old in kept.values()], dim=1)
        targets = torch.cat([self.targets[:, old] for old in kept.values()], dim=1)
        return Batch(self.tokens, positions, targets, columns)

    def scored(self) -> "Batch":
        """The same sequences, asked only for the answers that are scored (no running sums)."""
        last = [columns.stop - 1 for columns in self.columns.values()]
        names = {name: slice(i, i + 1) for i, name in enumerate(self.columns)}
        return Batch(self.tokens, self.positions[:, last], self.targets[:, last], names)


@dataclass(frozen=True, kw_only=True)
class Task(Chosen, ABC):
    """A family of sequences of any length. A subclass is one file: settings, vocabulary, batch, answers."""

    name: str
    answers: ClassVar[tuple[str, ...]]
    """The names of what is asked, in the order of `Batch.columns`."""
    state_answer: ClassVar[str | None] = None
    """The answer that takes state tracking, if one does; `when_beyond` watches it."""
    shortest: ClassVar[int] = 1
    """The shortest length at which every answer can be asked."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int: ...

    @property
    def longest(self) -> int | None:
        """The longest length that the vocabulary allows, or None where there is no bound."""
        return None

    @property
    @abstractmethod
    def chance(self) -> dict[str, float]:
        """The accuracy of guessing, for each named answer."""

    def keys_needed(self, length: int) -> int:
        """How many distinct keys a sequence of this length holds."""
        return 0

    @abstractmethod
    def token_count(self, length: int) -> int:
        """T for a length."""

    @abstractmethod
    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        """The sequences with these row numbers (B,) under a random key."""

    @abstractmethod
    def spell(self, token: int) -> str:
        """A token as a person would write it."""

    @property
    def chance_all(self) -> float:
        """The accuracy of guessing every answer of a sequence."""
        product = 1.0
        for level in self.chance.values():
            product *= level
        return product

    def check_length(self, length: int, field: str = "length") -> None:
        """Raise unless sequences of this length can be made with the vocabulary as it is."""
        if length < self.shortest:
            raise ConfigError(
                f"{field}: {length} is too short; a {self.name} sequence has at least {self.shortest} items"
            )
        if self.longest is not None and length > self.longest:
            raise ConfigError(
                f"{field}: {length} takes task.keys of {self.keys_needed(length)} or more; "
                f"this task has {getattr(self, 'keys', 0)}, enough for a length of {self.longest}"
            )

    def batch(
        self,
        seed: int | Tensor,
        split: Split,
        index: int | Tensor,
        *,
        length: int,
        size: int,
        first_row: int = 0,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch number `index` of a split: the same tokens whenever and wherever it is made.

        Row r depends on its own number alone, so a large batch can be made in pieces with `first_row`.
        `seed` and `index` may be tensors on the device, so that a captured step can advance them.
        """
        self.check_length(length)
        key = fold(seed, SPLITS.index(split), index, length)
        return self.draw(key, torch.arange(first_row, first_row + size, device=device), length)
