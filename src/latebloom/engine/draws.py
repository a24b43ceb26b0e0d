"""What attention draws for a training batch: positions from a longer range, the window, and the sequences that skip it.

Like the data, it is a pure function of seed and batch index, so that a resumed run draws the same, and stacked and
captured steps draw on the device. Positions and window are drawn once for a batch; whether attention is skipped, for
each sequence and layer.

Shapes: B sequences, T tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from latebloom.layers.attention.layer import short_or_full
from latebloom.models.block import Residual
from latebloom.models.settings import Attention
from latebloom.tasks.random import distinct, fold, shares

_DRAWS, _SKIPS = 0xA77E, 0xD20B
"""Separate these random numbers from those of the data and from each other."""


@contextmanager
def attention_draws(
    parts: Sequence[Residual], settings: Attention, seed: int | Tensor, index: Tensor, tokens: int, steps: int
) -> Iterator[None]:
    """Give attention the draws of batch `index` with T tokens, of `steps` training steps, while the context lasts.

    Attention that draws nothing costs nothing.
    """
    drawn = _draw(settings, seed, index, tokens, steps) if parts else {}
    try:
        for part in parts:
            part.drawn = drawn
        yield
    finally:
        for part in parts:
            part.drawn = {}


def _draw(settings: Attention, seed: int | Tensor, index: Tensor, tokens: int, steps: int) -> dict[str, Tensor]:
    drawn: dict[str, Tensor] = {}
    if settings.positions.drawn_from is None and settings.random_window is None:
        return drawn
    key, rows = fold(seed, _DRAWS, index), torch.zeros(1, dtype=torch.int64, device=index.device)
    if (bound := settings.positions.drawn_from) is not None:
        drawn["times"] = distinct(key, rows, 0, tokens, bound)[0].sort().values
    if (random := settings.random_window) is not None:
        is_short = (shares(key, rows, 1, 1)[0, 0] < random.probability) & (index < random.last_step(steps))
        drawn["window"] = short_or_full(is_short, random, settings.window, tokens)
    return drawn


@contextmanager
def drop_path(
    parts: Sequence[Residual], probability: Tensor | None, seed: int | Tensor, index: Tensor, sequences: int
) -> Iterator[None]:
    """Let each of B sequences of batch `index` skip each part with a probability () while the context lasts.

    The output of a part that is not skipped is not scaled up, so that it is what the model computes in tests.
    """
    if probability is None or not parts:
        yield
        return
    rows = torch.arange(sequences, device=index.device)
    kept = (shares(fold(seed, _SKIPS, index), rows, 0, len(parts)) >= probability).float()
    try:
        for number, part in enumerate(parts):
            part.kept = kept[:, number]
        yield
    finally:
        for part in parts:
            part.kept = None
