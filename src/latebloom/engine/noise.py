"""State noise: noise that is added to the states of recurrences at every token of training.

The state of a recurrence that is trained on short sequences may drift a little with every token, which adds up on long
sequences. With noise at every token, the recurrence has to learn to correct its state.

Shapes: B sequences, T tokens, D width, N numbers a sequence.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor

from latebloom.models.block import Residual
from latebloom.tasks.random import fold, shares

_NOISE = 0x57A7
"""Separates these random numbers from those of the data."""


@contextmanager
def state_noise(
    parts: Sequence[Residual], deviation: float | Tensor, seed: int | Tensor, index: Tensor, shape: tuple[int, int]
) -> Iterator[None]:
    """Add the noise of batch `index` with `shape` (B, T) to the states of recurrent parts while the context lasts.

    A float deviation of 0 costs nothing. The deviation is a tensor if stacked runs differ in it.
    """
    if not isinstance(deviation, Tensor) and deviation == 0:
        yield
        return
    sequences, tokens = shape
    rows = torch.arange(sequences, device=index.device)
    key = fold(seed, _NOISE, index)
    try:
        for number, part in enumerate(parts):
            drawn = uniform_noise(key, rows, number, tokens * part.width).unflatten(1, (tokens, part.width))
            part.noise = deviation * drawn
        yield
    finally:
        for part in parts:
            part.noise = None


def uniform_noise(key: int | Tensor, rows: Tensor, stream: int, count: int) -> Tensor:
    """Return uniform random numbers (B, N) with mean 0 and standard deviation 1."""
    return sqrt(3) * (2 * shares(key, rows, stream, count) - 1)
