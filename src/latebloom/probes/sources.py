"""Where the answer to a recall query stands in a sequence, for every task with an oracle.

The source of an answer is the token that equals it and on which it depends: if that token is changed, the task's oracle
gives another answer. So a task needs to say nothing about itself.

Shapes: B sequences.
"""

import torch
from torch import Tensor

from latebloom.tasks.task import Batch, Task


def find_source(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the token positions (B,) of the last recall query, and of the value that it asks for.

    The second is -1 where there is no such value, or several. If none is known, the first is the last token.
    """
    sequences, tokens = batch.shape
    unknown = torch.full((sequences,), tokens - 1), torch.full((sequences,), -1)
    answer = next((name for name in task.answers if name != task.state_answer), None)
    if answer is None:
        return unknown
    column = batch.columns[answer].stop - 1
    queries, targets = batch.positions[:, column].cpu(), batch.targets[:, column].cpu()
    others = targets.unique().tolist()
    places = [
        _place(task, answer, row, query, target, others)
        for row, query, target in zip(batch.tokens.tolist(), queries.tolist(), targets.tolist(), strict=True)
    ]
    return unknown if all(place < 0 for place in places) else (queries, torch.tensor(places))


def _place(task: Task, answer: str, tokens: list[int], query: int, target: int, others: list[int]) -> int:
    other = next((token for token in others if token != target), None)
    if other is None or _last(task, answer, tokens) != target:
        return -1
    found = []
    for place in (place for place in range(query) if tokens[place] == target):
        changed = _last(task, answer, [*tokens[:place], other, *tokens[place + 1 :]])
        if changed not in (None, target):
            found.append(place)
    return found[0] if len(found) == 1 else -1


def _last(task: Task, answer: str, tokens: list[int]) -> int | None:
    """Return the answer to the last query; None if there is no oracle, or the sequence is not one of the task."""
    try:
        answers = task.oracle(tokens)
    except (StopIteration, IndexError, KeyError, ValueError):
        return None
    if answers is None:
        return None
    found = answers[answer]
    return found[-1] if isinstance(found, list) else found
