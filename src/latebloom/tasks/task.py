"""The family of tasks: sequences with named answers.

A task is one file with one subclass of `Task`, a dataclass (`modular_sum.py` is the simplest): its settings, the size
of its vocabulary, and `draw`, which makes sequences and their answers from random numbers (`random.py`).

Shapes: B sequences, T tokens, A supervised positions, L items (the length).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isqrt
from typing import ClassVar, Literal

import torch
from torch import Tensor

from latebloom.components import Component
from latebloom.errors import ConfigError
from latebloom.layers.stacking import Stacking, stackable
from latebloom.tasks.random import fold

Split = Literal["train", "validation", "test"]
Supervision = Literal["aligned", "outcome"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Batch:
    """Sequences of one length, and the answers that are supervised in them."""

    tokens: Tensor
    """(B, T) token numbers."""
    positions: Tensor
    """(B, A) the token positions at which an answer is predicted."""
    targets: Tensor
    """(B, A) the correct answers, as token numbers."""
    columns: dict[str, slice]
    """The columns of A that belong to each named answer."""
    every: tuple[str, ...] = ()
    """The answers of which accuracy counts every column; of the others it counts the last."""

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T)"""
        sequences, tokens = self.tokens.shape
        return sequences, tokens

    def without(self, names: Iterable[str]) -> "Batch":
        """Return the same sequences without these answers."""
        return self._select({name: columns for name, columns in self.columns.items() if name not in set(names)})

    def scored(self) -> "Batch":
        """Return the same sequences with only the columns that accuracy counts."""
        last = {name: slice(columns.stop - 1, columns.stop) for name, columns in self.columns.items()}
        return self._select(last | {name: self.columns[name] for name in self.every if name in self.columns})

    def _select(self, kept: dict[str, slice]) -> "Batch":
        """Return the same sequences with only these columns."""
        if kept == self.columns:
            return self
        edges = pairwise(accumulate((old.stop - old.start for old in kept.values()), initial=0))
        columns = {name: slice(*edge) for name, edge in zip(kept, edges, strict=True)}
        positions = torch.cat([self.positions[:, old] for old in kept.values()], dim=1)
        targets = torch.cat([self.targets[:, old] for old in kept.values()], dim=1)
        return Batch(self.tokens, positions, targets, columns, self.every)


class Task(Component, ABC):
    """Sequences of any length with named answers."""

    answers: ClassVar[tuple[str, ...]]
    """The names of the answers, in the order of `Batch.columns`."""
    state_answer: ClassVar[str | None] = None
    """The answer that needs state tracking, if there is one; `when_beyond` watches it."""
    shortest: ClassVar[int] = 1
    """The shortest length at which every answer is defined."""
    stacking: ClassVar[Stacking] = "vmap"
    """How `draw` runs in a stack of models, where the key is a tensor with one key per model."""

    @property
    def carried_modulus(self) -> int | None:
        """The number m of states if a sequence can continue another: the state answer is then shifted by that of the
        sequence before it, modulo m, and its token numbers are 0 to m-1. None if that is not possible."""
        return None

    @property
    @abstractmethod
    def vocabulary_size(self) -> int: ...

    @property
    def longest(self) -> int | None:
        """The longest length that the vocabulary allows, or None if there is no limit."""
        return None

    @property
    @abstractmethod
    def chance(self) -> dict[str, float]:
        """The accuracy of guessing, for each answer."""

    def keys_needed(self, length: int) -> int:
        """Return how many distinct keys a sequence of this length has."""
        return 0

    @abstractmethod
    def token_count(self, length: int) -> int:
        """Return the number of tokens T of a sequence of this length."""

    @abstractmethod
    def draw(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        """Make the sequences with these row numbers (B,) from a random key."""

    @abstractmethod
    def spell(self, token: int) -> str:
        """Return a token as text."""

    def oracle(self, tokens: list[int]) -> Mapping[str, int | list[int]] | None:
        """Return the answers of one sequence, computed from its tokens in plain Python; None if there is no oracle.

        An answer of which every column is scored is a list. `latebloom check` compares them with the targets of `draw`.
        """
        return None

    def check_length(self, length: int, field: str = "length") -> None:
        """Raise a ConfigError unless the vocabulary allows sequences of this length."""
        if length < self.shortest:
            raise ConfigError(
                f"{field}: {length} is too short; a {self.name} sequence has at least {self.shortest} items"
            )
        if self.longest is not None and length > self.longest:
            needed, tokens = self.keys_needed(length), getattr(self, "key_tokens", 1)
            raise ConfigError(
                f"{field}: {length} needs task.keys of {needed if tokens == 1 else isqrt(needed - 1) + 1} or more; "
                f"this task has {getattr(self, 'keys', 0)}{' at each place of a key' * (tokens > 1)}, enough for a "
                f"length of {self.longest}"
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
        """Return batch number `index` of a split: a pure function of the arguments, on every device.

        Row r depends on its own number alone, so a large batch can be made in pieces with `first_row`.
        `seed` and `index` may be tensors on the device, so that a captured step can advance them.
        """
        self.check_length(length)
        key = fold(seed, SPLITS.index(split), index, length)
        rows = torch.arange(first_row, first_row + size, device=device)
        return self._draw_per_model(key, rows, length) if self.stacking == "loop" else self.draw(key, rows, length)

    def _draw_per_model(self, key: int | Tensor, rows: Tensor, length: int) -> Batch:
        """Call `draw` once for each of the stacked models; the generic path for tasks without a batching rule."""
        kept: list[Batch] = []

        def one_model(key: int | Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            batch = self.draw(key, rows, length)
            kept.append(batch)
            return batch.tokens, batch.positions, batch.targets

        def each_model(keys: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
            drawn = [one_model(key, rows[0]) for key in keys]
            return tuple(torch.stack(part) for part in zip(*drawn, strict=True))

        tokens, positions, targets = stackable(one_model, each_model)(key, rows)
        return replace(kept[0], tokens=tokens, positions=positions, targets=targets)
