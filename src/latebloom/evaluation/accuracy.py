"""Accuracy by length on sequences a model has never seen.

Shapes: B sequences, T tokens, A asked answers, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError, require
from latebloom.evaluation.interval import binomial_interval
from latebloom.tasks.task import Split, Task

# Sequences are measured in pieces of about this many tokens, so that memory does not grow with the length.
TOKENS_AT_ONCE = {"cpu": 1 << 14, "cuda": 1 << 18}


@dataclass(frozen=True)
class Count:
    """Right answers among sequences of one length."""

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


def count_correct(
    model: nn.Module,
    task: Task,
    length: int,
    *,
    sequences: int,
    seed: int,
    split: Split = "test",
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Count:
    """Ask a model for the answers of `sequences` sequences. `progress` is told how many are done."""
    task.check_length(length)
    kind = torch.device(device).type
    at_once = max(1, TOKENS_AT_ONCE.get(kind, 1 << 14) // task.token_count(length))
    rights: list[Tensor] = []
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for first in range(0, sequences, at_once):
                size = min(at_once, sequences - first)
                batch = task.batch(seed, split, 0, length=length, size=size, first_row=first, device=device).scored()
                logits = model(batch.tokens, batch.positions)
                rights.append(logits.argmax(dim=-1) == batch.targets)
                if progress is not None:
                    progress(first + size)
    finally:
        model.train(was_training)
    right = torch.cat(rights)  # (sequences, answers)
    each = right.sum(dim=0).tolist()
    return Count(length, sequences, int(right.all(dim=1).sum()), dict(zip(task.answers, each, strict=True)))


def check_lengths(task: Task, lengths: Sequence[int], sequences: int) -> list[int]:
    """The lengths in order, each once; an error if there are none or one cannot be made."""
    require(sequences >= 1, "sequences", sequences, "1 or more")
    if not lengths:
        raise ConfigError("lengths: the list is empty; name at least one, such as 25,50,75")
    for length in lengths:
        task.check_length(length, "lengths")
    return sorted(set(lengths))
