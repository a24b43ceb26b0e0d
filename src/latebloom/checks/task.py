"""Checks of a task."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from latebloom.checks.check import Fails, checks, require, skip
from latebloom.errors import first_line
from latebloom.tasks import Batch, Split, Task, contract

KEYED = "draw random numbers with integers(key, rows, ...) from latebloom.tasks.random, not with torch.randint"
MANY = 1024
"""Sequences from which frequencies are estimated."""


def lengths_of(task: Task) -> list[int]:
    """Return some lengths that the task has sequences of."""
    shortest = max(2, task.shortest)
    longest = shortest + 12 if task.longest is None else min(shortest + 12, task.longest)
    return sorted({shortest, min(shortest + 3, longest), longest})


def draw(task: Task, length: int, *, seed: int = 1, split: Split = "train", index: int = 0, size: int = 16) -> Batch:
    return task.batch(seed, split, index, length=length, size=size)


def _parts(batch: Batch) -> list[Tensor]:
    return [batch.tokens, batch.positions, batch.targets]


def _same(one: Batch, other: Batch) -> bool:
    return all(map(torch.equal, _parts(one), _parts(other)))


@checks(Task)
def is_pure(task: Task) -> None:
    """a batch depends on nothing but (seed, split, index, length)"""
    for length in lengths_of(task):
        first = draw(task, length)
        torch.manual_seed(12345)
        draw(task, length, seed=7)
        require(_same(first, draw(task, length)), f"the same batch differs when it is drawn again; {KEYED}")


@checks(Task)
def has_independent_rows(task: Task) -> None:
    """a row does not depend on the size of its batch"""
    for length in lengths_of(task):
        whole = draw(task, length, size=8)
        rest = task.batch(1, "train", 0, length=length, size=5, first_row=3)
        same = all(torch.equal(one[3:], other) for one, other in zip(_parts(whole), _parts(rest), strict=True))
        require(same, "rows 3 to 7 differ when they are drawn alone; a row may depend only on its number in `rows`")


@checks(Task)
def has_different_splits(task: Task) -> None:
    """splits, seeds and indices have different sequences"""
    length = lengths_of(task)[-1]
    first = draw(task, length, size=64).tokens
    others = {"seed": {"seed": 2}, "split": {"split": "test"}, "index": {"index": 1}}
    for name, change in others.items():
        require(
            not torch.equal(first, draw(task, length, size=64, **change).tokens), f"another {name} gives the same batch"
        )


def _on_batches(rule: Callable[[Task, Batch, int], str | None]) -> Callable[[Task], None]:
    @wraps(rule)
    def check(task: Task) -> None:
        # How often an answer occurs may depend on the length, and chance is for long sequences.
        for length in lengths_of(task)[-1 if rule is contract.has_chance_level else 0 :]:
            if reason := rule(task, draw(task, length, size=MANY), length):
                raise Fails(reason)

    return check


for rule in contract.RULES:
    checks(Task)(_on_batches(rule))


@checks(Task)
def scores_the_last_column(task: Task) -> str:
    """of several columns of an answer, accuracy counts every one, or the last, which is the latest in the sequence"""
    batch = draw(task, lengths_of(task)[-1])
    several = {name: columns for name, columns in batch.columns.items() if columns.stop - columns.start > 1}
    if not several:
        skip("every answer has one column")
    for name, columns in several.items():
        positions = batch.positions[:, columns]
        early = name not in batch.every and bool((positions[:, -1:] < positions).any())
        require(not early, f"the last column of {name} is not the latest, and accuracy counts that one alone")
    counts = [f"{columns.stop - columns.start} of {name}" for name, columns in several.items()]
    scored = [name for name in several if name in batch.every]
    which = "the last" if not scored else "all" if len(scored) == len(several) else f"all of {' and '.join(scored)}"
    return f"the loss has {' and '.join(counts)}, and accuracy counts {which}"


@checks(Task)
def agrees_with_its_oracle(task: Task) -> None:
    """oracle(tokens) computes the same answers from the tokens alone"""
    for length in lengths_of(task):
        batch = draw(task, length, size=32).scored()
        for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            said = task.oracle(row)
            if said is None:
                skip("it has no oracle; define oracle(tokens) to have its answers checked")
            for name, columns in batch.columns.items():
                right: Any = targets[columns] if name in batch.every else targets[columns.start]
                spelt = " ".join(map(task.spell, row))
                require(
                    said.get(name) == right,
                    f"{spelt}: the oracle's {name} is {said.get(name)}, and the target is {right}",
                )


@checks(Task)
def can_be_stacked(task: Task) -> None:
    """in a stack, where every model has its own seed, each draws what it draws alone"""
    if task.stacking == "none":
        skip("it declares that it cannot be stacked")
    length, seeds = lengths_of(task)[-1], torch.arange(3)

    def tokens(seed: Tensor) -> tuple[Tensor, ...]:
        return tuple(_parts(task.batch(seed, "train", torch.tensor(4), length=length, size=4)))

    try:
        together = torch.func.vmap(tokens)(seeds)
    except Exception as error:
        reason = first_line(error)
        cure = KEYED if "random" in reason else 'declare stacking = "loop"'
        raise Fails(f"it cannot run under torch.func.vmap ({reason}); {cure}") from error
    for i in range(3):
        alone = _parts(draw(task, length, seed=i, index=4, size=4))
        same = all(torch.equal(one[i], other) for one, other in zip(together, alone, strict=True))
        require(same, f"seed {i} draws another batch in a stack")


@checks(Task)
def does_not_wait_for_the_device(task: Task) -> None:
    """a batch is made without host synchronization, such as .item() or a branch on a tensor"""
    with FakeTensorMode():
        task.batch(torch.tensor(3), "train", torch.tensor(4), length=lengths_of(task)[-1], size=4)


@checks(Task)
def spells_its_tokens(task: Task) -> None:
    """spell(token) is a text for every token"""
    spelt = [task.spell(token) for token in range(task.vocabulary_size)]
    require(all(isinstance(text, str) and text for text in spelt), "it is empty or not a string for some tokens")
