"""Accuracy by length of many models at once.

Shapes: S stacked models, B sequences, A asked answers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from latebloom.evaluation.accuracy import TOKENS_AT_ONCE, Count
from latebloom.tasks.task import Split, Task


def count_correct_stacked(
    each: Callable[..., Any],
    task: Task,
    length: int,
    *,
    sequences: int,
    seeds: Tensor,
    split: Split = "test",
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[Count]:
    """What `count_correct` finds for each of S models, on each one's own sequences.

    `each(function, *arguments)` calls a function of one model and its arguments for all of them.
    """
    task.check_length(length)
    kind = torch.device(device).type
    models = seeds.shape[0]
    at_once = max(1, STACK_FACTOR[kind] * TOKENS_AT_ONCE[kind] // (task.token_count(length) * models))
    rights: list[Tensor] = []
    with torch.inference_mode():
        for first in range(0, sequences, at_once):
            size = min(at_once, sequences - first)

            def one(model: Any, seed: Tensor, first: int = first, size: int = size) -> Tensor:
                batch = task.batch(seed, split, 0, length=length, size=size, first_row=first, device=device).scored()
                return model(batch.tokens, batch.positions).argmax(dim=-1) == batch.targets

            rights.append(each(one, seeds))
            if progress is not None:
                progress(first + size)
    right = torch.cat(rights, dim=1)  # (S, sequences, A)
    answers, whole = right.sum(dim=1).tolist(), right.all(dim=2).sum(dim=1).tolist()
    return [
        Count(length, sequences, correct, dict(zip(task.answers, row, strict=True)))
        for correct, row in zip(whole, answers, strict=True)
    ]


STACK_FACTOR = {"cpu": 1, "cuda": 8}
"""A stack measures this many times the tokens that one model would at once, so that every model has some."""
