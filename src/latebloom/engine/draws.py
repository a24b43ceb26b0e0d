"""What attention draws for a training batch: positions from a longer range, and the window.

Like the data, it is a pure function of seed and batch index, so that a resumed run draws the same, and stacked and
captured steps draw on the device. A batch has one draw, which its sequences and all layers share.

Shapes: T tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from latebloom.layers.attention.layer import short_or_full
from latebloom.models.block import Residual
from latebloom.models.settings import Attention
from latebloom.tasks.random import distinct, fold, shares

_DRAWS = 0xA77E
"""Separates these random numbers from those of the data."""


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
    key, rows = fold(seed, _DRAWS, index), torch.zeros(1, dtype=torch.int64, device=index.device)
    if (bound := settings.positions.drawn_from) is not None:
        drawn["times"] = distinct(key, rows, 0, tokens, bound)[0].sort().values
    if (random := settings.random_window) is not None:
        is_short = (shares(key, rows, 1, 1)[0, 0] < random.probability) & (index < random.last_step(steps))
        drawn["window"] = short_or_full(is_short, random, settings.window, tokens)
    return drawn
