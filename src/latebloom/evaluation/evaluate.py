"""Evaluating a trained model at a row of lengths."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from latebloom.evaluation.accuracy import Count, check_lengths, count_correct
from latebloom.evaluation.result import Evaluation
from latebloom.evaluation.stacked import count_correct_stacked
from latebloom.tasks.task import Task

Counted = TypeVar("Counted")


def evaluate(
    model: nn.Module,
    task: Task,
    lengths: Sequence[int],
    *,
    training_length: int,
    sequences: int = 1024,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Accuracy by length on the test split, on the model's own device unless another is given.

    `progress` is told the share of tokens that is done.
    """
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model = model.to(device)

    def count(length: int, tell: Callable[[int], None]) -> Count:
        return count_correct(model, task, length, sequences=sequences, seed=seed, device=device, progress=tell)

    counts = _each_length(task, lengths, sequences, progress, count)
    return Evaluation(training_length, tuple(counts), task.chance, task.chance_all)


def evaluate_stacked(
    each: Callable[..., Any],
    task: Task,
    lengths: Sequence[int],
    *,
    training_length: int,
    sequences: int,
    seeds: Tensor,
    device: torch.device | str,
    progress: Callable[[float], None] | None = None,
) -> list[Evaluation]:
    """What `evaluate` finds for each model of a stack; see `count_correct_stacked`."""

    def count(length: int, tell: Callable[[int], None]) -> list[Count]:
        return count_correct_stacked(each, task, length, sequences=sequences, seeds=seeds, device=device, progress=tell)

    by_length = _each_length(task, lengths, sequences, progress, count)
    return [
        Evaluation(training_length, counts, task.chance, task.chance_all) for counts in zip(*by_length, strict=True)
    ]


def _each_length(
    task: Task,
    lengths: Sequence[int],
    sequences: int,
    progress: Callable[[float], None] | None,
    count: Callable[[int, Callable[[int], None]], Counted],
) -> list[Counted]:
    """What `count` finds at each length in order; `progress` is told the share of tokens that is done."""
    lengths = check_lengths(task, lengths, sequences)
    work = [task.token_count(length) * sequences for length in lengths]
    counted = []
    for i, length in enumerate(lengths):

        def tell(finished: int, i: int = i) -> None:
            if progress is not None:
                progress((sum(work[:i]) + work[i] * finished / sequences) / sum(work))

        counted.append(count(length, tell))
    return counted
