"""What a task declares, compared with a batch of it: by `latebloom check`, and before step 1 of a run.

Each rule has the property in its docstring, and returns why it does not hold, or None.
"""

import sys
from math import log

import torch

from latebloom.components import origin_of
from latebloom.errors import ConfigError
from latebloom.plugins import explain_at
from latebloom.tasks.task import Batch, Task

SAMPLE = 256
"""Sequences of the batch that is checked before a run."""


def has_declared_shape(task: Task, batch: Batch, length: int) -> str | None:
    """sequences have token_count(length) tokens, and every position is one of them"""
    tokens, found = task.token_count(length), batch.tokens.shape[1]
    if found != tokens:
        return f"length {length} has {found} tokens, and token_count says {tokens}"
    if batch.positions.shape != batch.targets.shape:
        return "positions and targets have different shapes"
    low, high = int(batch.positions.min()), int(batch.positions.max())
    return None if 0 <= low <= high < tokens else f"positions go from {low} to {high}, and there are {tokens} tokens"


def has_large_enough_vocabulary(task: Task, batch: Batch, length: int) -> str | None:
    """tokens and answers are numbers below vocabulary_size"""
    for what, found in (("a token", batch.tokens), ("an answer", batch.targets)):
        if found.dtype != torch.int64:
            return f"{what} is a number of {found.dtype}; it must be torch.int64"
        high, low, size = int(found.max()), int(found.min()), task.vocabulary_size
        if low < 0:
            return f"{what} is {low}"
        if high >= size:
            return f"{what} is {high}, so vocabulary_size must be {high + 1} or more; it is {size}"
    return None


def has_columns_for_its_answers(task: Task, batch: Batch, length: int) -> str | None:
    """`answers` names the columns of a batch, in order, and every column belongs to one"""
    if missing := [name for name in batch.columns if name not in task.answers]:
        return f"the batch has columns for {', '.join(missing)}, which `answers` does not name"
    if absent := [name for name in task.answers if name not in batch.columns]:
        return f"`answers` names {', '.join(absent)}, and the batch has no columns for it"
    if wrong := [name for name in batch.every if name not in task.answers]:
        return f"the batch scores every column of {', '.join(wrong)}, which `answers` does not name"
    if list(batch.columns) != list(task.answers):
        return "`answers` and the columns are in different orders"
    ends = [0, *(columns.stop for columns in batch.columns.values())]
    if [columns.start for columns in batch.columns.values()] != ends[:-1]:
        return "the columns of the answers have gaps or overlap"
    count = batch.targets.shape[1]
    return None if ends[-1] == count else f"there are {count} columns, and the answers cover {ends[-1]} of them"


def has_state_answer(task: Task, batch: Batch, length: int) -> str | None:
    """`state_answer` is None or one of `answers`"""
    if task.state_answer in (None, *task.answers):
        return None
    return f"state_answer is {task.state_answer!r}, which is not in `answers` ({', '.join(task.answers)})"


def has_chance_level(task: Task, batch: Batch, length: int) -> str | None:
    """`chance` is the accuracy of the best constant guess, for each answer"""
    if set(task.chance) != set(task.answers):
        return f"chance is given for {', '.join(task.chance) or 'no answer'}; `answers` has {', '.join(task.answers)}"
    scored = batch.scored()
    for name, level in task.chance.items():
        if not 0 < level < 1:
            return f"chance of {name} is {level}; it must be between 0 and 1"
        answers = scored.targets[:, scored.columns[name]].flatten()
        share = float(answers.bincount().max()) / len(answers)
        # The answers of one sequence depend on each other, so the bound is for the number of sequences.
        if _is_above(share, level, len(scored.targets), guesses=task.vocabulary_size):
            guess, percents = task.spell(int(answers.mode().values)), [f"{100 * part:.2g}%" for part in (level, share)]
            return f"chance of {name} is {percents[0]}, and always answering {guess!r} is right in {percents[1]}"
    return None


def _is_above(share: float, level: float, count: int, *, guesses: int) -> bool:
    """Return whether the best of many constant guesses is right too often in `count` sequences for a chance level.

    By Chernoff's bound, it is right that often by luck in at most one of a million batches.
    """
    if share <= level:
        return False
    wrong = (1 - share) * log((1 - share) / (1 - level)) if share < 1 else 0.0
    return count * (share * log(share / level) + wrong) > log(1e6 * guesses)


RULES = (
    has_declared_shape,
    has_columns_for_its_answers,
    has_large_enough_vocabulary,
    has_state_answer,
    has_chance_level,
)


def check_own_task(task: Task, length: int) -> None:
    """Raise a ConfigError if a task from outside the package contradicts a batch of its own, or cannot make one."""
    origin = origin_of(type(task))
    if origin is None:
        return
    try:
        batch = task.batch(0, "train", 0, length=length, size=SAMPLE)
        wrong = next(filter(None, (rule(task, batch, length) for rule in RULES)), None)
    except ConfigError:
        raise
    except Exception as error:
        wrong = explain_at(error, getattr(sys.modules.get(type(task).__module__), "__file__", None))
    if wrong:
        raise ConfigError(f"task: {task.name}: {wrong}; `latebloom check {origin}` tests it")
