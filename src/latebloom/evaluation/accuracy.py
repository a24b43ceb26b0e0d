"""Accuracy by length on held-out sequences.

Shapes: S models, B sequences, T tokens, A answers, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.evaluation.interval import binomial_interval
from latebloom.tasks.task import Split, Task

TOKENS_AT_ONCE = {"cpu": 1 << 14, "cuda": 1 << 18}
"""Sequences are evaluated in pieces of about this many tokens, so that memory does not grow with the length."""
STACK_FACTOR = {"cpu": 1, "cuda": 8}
"""A stack evaluates this many times the tokens that one model would at once, so that every model has enough."""


@dataclass(frozen=True)
class Count:
    """The number of right answers on sequences of one length."""

    length: int
    sequences: int
    correct: int
    """Sequences with every answer right."""
    answers: dict[str, int]
    """Sequences with each named answer right."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.sequences

    def accuracy_of(self, answer: str) -> float:
        return self.answers[answer] / self.sequences

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval of `accuracy`."""
        return binomial_interval(self.correct, self.sequences)


def apply_to_one(model: nn.Module, function: Callable[..., Any], *per_model: Tensor) -> Any:
    """Call `function(model, *arguments)`; arguments and results have a leading axis of one model."""
    result = function(model, *(argument[0] for argument in per_model))
    return tuple(part[None] for part in result) if isinstance(result, tuple) else result[None]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode while the context lasts."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def count_correct(
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
    """Count the right answers of each of S models, on `sequences` sequences of its seed (S,).

    `each(function, *arguments)` calls `function(model, *arguments)` for every model, such as
    `partial(apply_to_one, model)`. `progress` is called with the number of sequences that are done.
    """
    task.check_length(length)
    kind, models = torch.device(device).type, seeds.shape[0]
    budget = TOKENS_AT_ONCE.get(kind, 1 << 14) * (STACK_FACTOR.get(kind, 1) if models > 1 else 1)
    at_once = max(1, budget // (task.token_count(length) * models))
    found: list[Tensor] = []
    with torch.inference_mode():
        for first in range(0, sequences, at_once):
            size = min(at_once, sequences - first)

            def compare(model: Any, seed: Tensor, first: int = first, size: int = size) -> Tensor:
                batch = task.batch(seed, split, 0, length=length, size=size, first_row=first, device=device).scored()
                return model(batch.tokens, batch.positions).argmax(dim=-1) == batch.targets

            found.append(each(compare, seeds))
            if progress is not None:
                progress(first + size)
    right = torch.cat(found, dim=1)  # (S, sequences, A)
    answers, whole = right.sum(dim=1).tolist(), right.all(dim=2).sum(dim=1).tolist()
    return [
        Count(length, sequences, correct, dict(zip(task.answers, row, strict=True)))
        for correct, row in zip(whole, answers, strict=True)
    ]
