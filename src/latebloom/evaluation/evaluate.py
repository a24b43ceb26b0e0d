"""Evaluation of trained models at several lengths."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.evaluation.accuracy import apply_to_one, check_lengths, count_correct, evaluating
from latebloom.evaluation.result import Evaluation
from latebloom.tasks.task import Task


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
    """Return the accuracy by length on the test split, computed on the model's own device unless another is given.

    `progress` is called with the share of tokens that is done.
    """
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model = model.to(device)
    with evaluating(model):
        (found,) = evaluate_each(
            partial(apply_to_one, model),
            task,
            lengths,
            training_length=training_length,
            sequences=sequences,
            seeds=torch.tensor([seed], device=device),
            device=device,
            progress=progress,
        )
    return found


def evaluate_each(
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
    """Return the evaluation of each of S models; see `count_correct` for `each` and `seeds`."""
    lengths = check_lengths(task, lengths, sequences)
    work = [task.token_count(length) * sequences for length in lengths]
    by_length = []
    for i, length in enumerate(lengths):

        def report(finished: int, i: int = i) -> None:
            if progress is not None:
                progress((sum(work[:i]) + work[i] * finished / sequences) / sum(work))

        found = count_correct(each, task, length, sequences=sequences, seeds=seeds, device=device, progress=report)
        by_length.append(found)
    return [
        Evaluation(training_length, counts, task.chance, task.chance_all) for counts in zip(*by_length, strict=True)
    ]
