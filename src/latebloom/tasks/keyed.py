"""The base of tasks with keys and values."""

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from latebloom.fields import at_least
from latebloom.tasks.pieces import Vocabulary
from latebloom.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class KeyedTask(Task):
    """Sequences in which keys have values. The number of keys bounds the length."""

    markers: ClassVar[tuple[str, ...]]
    """The tokens that are neither digits nor keys nor values, whatever the settings are."""

    keys: Annotated[int, at_least(2)] = 256
    """Number of keys; with keys of two tokens, the number of tokens at each of the two places."""
    key_tokens: Literal[1, 2] = 1
    """Tokens of a key. With two there are `keys` squared keys, so that long sequences need few tokens."""
    values: Annotated[int, at_least(2)] = 64
    """Number of values; several keys may have the same value."""

    @property
    def named_tokens(self) -> tuple[str, ...]:
        """All tokens that are neither digits nor keys nor values."""
        return self.markers

    @property
    def digits(self) -> int:
        """The number of digits."""
        return 0

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.digits, self.keys, self.values, self.named_tokens, self.key_tokens)

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary.size

    def spell(self, token: int) -> str:
        return self.vocabulary.spell(token)

    @property
    def longest(self) -> int:
        return bisect_right(range(1 << 62), self.keys**self.key_tokens, key=self.keys_needed) - 1

    @abstractmethod
    def keys_needed(self, length: int) -> int: ...
