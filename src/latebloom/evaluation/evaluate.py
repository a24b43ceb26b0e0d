"""Evaluation of trained models at several lengths."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError, require
from latebloom.evaluation.accuracy import apply_to_one, count_correct, evaluating
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
    require(sequences >= 1, "sequences", sequences, "1 or more")
    if not lengths:
        raise ConfigError("lengths: the list is empty; name at least one, such as 25,50,75")
    for length in lengths:
        task.check_length(length, "lengths")
    tokens = {length: task.token_count(length) * sequences for length in sorted(set(lengths))}
    by_length, done = [], 0
    for length, work in tokens.items():

        def report(finished: int, done: int = done, work: int = work) -> None:
            if progress is not None:
                progress((done + work * finished / sequences) / sum(tokens.values()))

        by_length.append(
            count_correct(each, task, length, sequences=sequences, seeds=seeds, device=device, progress=report)
        )
        done += work
    return [Evaluation.of(training_length, counts, task.chance) for counts in zip(*by_length, strict=True)]
