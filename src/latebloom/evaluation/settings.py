"""Evaluation settings."""

from dataclasses import dataclass

from latebloom.errors import require
from latebloom.fields import Count, check_fields


@dataclass(frozen=True, kw_only=True)
class Evaluating:
    """The tested lengths, and the number of sequences."""

    multiples: tuple[float, ...] = (0.4, 1, 1.2, 1.4, 2, 3, 4, 6, 8)
    """The tested lengths, in training lengths."""
    sequences: Count = 1024
    """Sequences per length."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(len(self.multiples) >= 1, "multiples", self.multiples, "at least one number")
        require(all(m > 0 for m in self.multiples), "multiples", self.multiples, "numbers above 0")

    def lengths(self, training_length: int, shortest: int = 1) -> list[int]:
        """Return the tested lengths, none below `shortest`."""
        return sorted({max(shortest, round(multiple * training_length)) for multiple in self.multiples})
