"""Noise on what recurrences remember while they are trained.

A recurrence that is trained on short sequences may drift a little with every token and still be right; on long ones it
is not. Disturbed at every token, it has to pull its states back to where they belong.

Shapes: B sequences, T tokens, D width, N numbers a sequence.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor, nn

from latebloom.models.block import Residual
from latebloom.tasks.random import fold, words

_NOISE = 0x57A7
"""Sets these numbers apart from those of the data."""


class StateNoise:
    """Disturbs the recurrences of a model."""

    def __init__(self, model: nn.Module) -> None:
        parts = model.modules()
        self._parts = [part for part in parts if isinstance(part, Residual) and part.role == "recurrence"]

    @contextmanager
    def given(
        self, deviation: float | Tensor, seed: int | Tensor, index: Tensor, shape: tuple[int, int]
    ) -> Iterator[None]:
        """Within, the model's recurrences have the noise of batch `index` (B, T) of a seed, which is its own.

        A deviation of 0 leaves them alone, and costs nothing; one that the device alone knows is a tensor.
        """
        if not isinstance(deviation, Tensor) and deviation == 0:
            yield
            return
        sequences, tokens = shape
        rows = torch.arange(sequences, device=index.device)
        key = fold(seed, _NOISE, index)
        try:
            for number, part in enumerate(self._parts):
                width = part.norm.weight.shape[-1]
                drawn = spread(key, rows, number, tokens * width).unflatten(1, (tokens, width))
                part.noise = deviation * drawn
            yield
        finally:
            for part in self._parts:
                part.noise = None


def spread(key: int | Tensor, rows: Tensor, stream: int, count: int) -> Tensor:
    """Numbers (B, N) with mean 0 and deviation 1, uniform."""
    share = (words(key, rows, stream, count) >> 40 & 0xFFFFFF).float() / (1 << 24)
    return sqrt(3) * (2 * share - 1)
