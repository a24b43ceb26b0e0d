"""The states in which recurrences begin a training sequence: at zero, or anywhere.

A recurrence that always begins at zero and is trained on short sequences sees few of its states; what it accumulates
over a long one is new to it. Begun in random states, it learns to do its work from any.

Shapes: B sequences, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor, nn

from latebloom.models.block import Residual
from latebloom.tasks.counter import fold, words

_STARTS = 0x57A7
"""Sets these numbers apart from those of the data."""


class RandomStarts:
    """Gives the recurrences of a model their first states, of a size that is 0 to leave them alone."""

    def __init__(self, model: nn.Module, size: float) -> None:
        self._size = size
        parts = (part for part in model.modules() if isinstance(part, Residual) and part.role == "recurrence")
        self._parts = list(parts) if size > 0 else []

    @contextmanager
    def given(self, seed: int | Tensor, index: Tensor, sequences: int) -> Iterator[None]:
        """Within, the model's recurrences begin batch `index` of a seed in the random states that are its own."""
        if not self._parts:
            yield
            return
        rows = torch.arange(sequences, device=index.device)
        key = fold(seed, _STARTS, index)
        for number, part in enumerate(self._parts):
            part.start = self._size * spread(key, rows, number, part.norm.weight.shape[-1])
        try:
            yield
        finally:
            for part in self._parts:
                part.start = None


def spread(key: int | Tensor, rows: Tensor, stream: int, count: int) -> Tensor:
    """Numbers (B, count) with mean 0 and deviation 1, uniform."""
    share = (words(key, rows, stream, count) >> 40 & 0xFFFFFF).float() / (1 << 24)
    return sqrt(3) * (2 * share - 1)
