"""Evaluating a trained model at a row of lengths."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from latebloom.evaluation.accuracy import check_lengths, count_correct
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
    """Accuracy by length on the test split, on the model's own device unless another is given.

    `progress` is told the share of tokens that is done.
    """
    lengths = check_lengths(task, lengths, sequences)
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    model = model.to(device)
    work = [task.token_count(length) * sequences for length in lengths]
    done, counts = 0, []
    for length, tokens in zip(lengths, work, strict=True):

        def tell(finished: int, done: int = done, tokens: int = tokens) -> None:
            if progress is not None:
                progress((done + tokens * finished / sequences) / sum(work))

        counts.append(count_correct(model, task, length, sequences=sequences, seed=seed, device=device, progress=tell))
        done += tokens
    return Evaluation(training_length, tuple(counts), task.chance, task.chance_all)
