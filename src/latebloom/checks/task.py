"""Checks of a task.

Shapes: B sequences, T tokens, A supervised positions.
"""

from math import sqrt

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from latebloom.checks.check import Fails, checks, require, skip
from latebloom.tasks import Batch, Task

MANY = 1024
"""Sequences from which frequencies are estimated."""


def lengths_of(task: Task) -> list[int]:
    """Return some lengths that the task has sequences of."""
    shortest = max(2, task.shortest)
    longest = shortest + 12 if task.longest is None else min(shortest + 12, task.longest)
    return sorted({shortest, min(shortest + 3, longest), longest})


def draw(task: Task, length: int, *, seed: int = 1, split: str = "train", index: int = 0, size: int = 16) -> Batch:
    return task.batch(seed, split, index, length=length, size=size)  # type: ignore[arg-type]


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
        require(_same(first, draw(task, length)), "the same batch differs the second time; draw from the key alone")


@checks(Task)
def has_independent_rows(task: Task) -> None:
    """a row does not depend on the size of its batch"""
    for length in lengths_of(task):
        whole = draw(task, length, size=8)
        rest = task.batch(1, "train", 0, length=length, size=5, first_row=3)
        same = all(torch.equal(one[3:], other) for one, other in zip(_parts(whole), _parts(rest), strict=True))
        require(same, "rows 3 to 7 differ when they are drawn alone")


@checks(Task)
def has_different_splits(task: Task) -> None:
    """splits, seeds and indices have different sequences"""
    length = lengths_of(task)[-1]
    first = draw(task, length, size=64).tokens
    others = {"seed": {"seed": 2}, "split": {"split": "test"}, "index": {"index": 1}}
    for name, change in others.items():
        require(not torch.equal(first, draw(task, length, size=64, **change).tokens), f"another {name} has the same")


@checks(Task)
def has_declared_shape(task: Task) -> None:
    """sequences have token_count(length) tokens, and every position is one of them"""
    for length in lengths_of(task):
        batch, tokens = draw(task, length), task.token_count(length)
        found = batch.tokens.shape[1]
        require(found == tokens, f"length {length} has {found} tokens, and token_count says {tokens}")
        require(batch.positions.shape == batch.targets.shape, "positions and targets have different shapes")
        low, high = int(batch.positions.min()), int(batch.positions.max())
        require(low >= 0 and high < tokens, f"positions go from {low} to {high}, and there are {tokens} tokens")


@checks(Task)
def has_large_enough_vocabulary(task: Task) -> None:
    """tokens and answers are numbers below vocabulary_size"""
    for length in lengths_of(task):
        batch = draw(task, length, size=MANY)
        for what, found in (("token", batch.tokens), ("answer", batch.targets)):
            high, low, size = int(found.max()), int(found.min()), task.vocabulary_size
            require(low >= 0, f"a {what} is {low}")
            require(high < size, f"a {what} is {high}, so vocabulary_size must be {high + 1} or more; it is {size}")


@checks(Task)
def has_columns_for_its_answers(task: Task) -> None:
    """`answers` names the columns of a batch, in order, and every column belongs to one"""
    for length in lengths_of(task):
        batch = draw(task, length)
        missing = [name for name in batch.columns if name not in task.answers]
        require(not missing, f"the batch has columns for {', '.join(missing)}, which `answers` does not name")
        absent = [name for name in task.answers if name not in batch.columns]
        require(not absent, f"`answers` names {', '.join(absent)}, and the batch has no columns for it")
        require(list(batch.columns) == list(task.answers), "`answers` and the columns are in different orders")
        ends = [0, *(columns.stop for columns in batch.columns.values())]
        starts = [columns.start for columns in batch.columns.values()]
        require(starts == ends[:-1], "the columns of the answers have gaps or overlap")
        count = batch.targets.shape[1]
        require(ends[-1] == count, f"there are {count} columns, and the answers cover {ends[-1]} of them")
    require(
        task.state_answer in (None, *task.answers), f"state_answer is {task.state_answer!r}, which is not in `answers`"
    )


@checks(Task)
def scores_the_last_column(task: Task) -> str:
    """of several columns of an answer, the last, which accuracy counts, is the latest in the sequence"""
    batch = draw(task, lengths_of(task)[-1])
    several = {name: columns for name, columns in batch.columns.items() if columns.stop - columns.start > 1}
    if not several:
        skip("every answer has one column")
    for name, columns in several.items():
        positions = batch.positions[:, columns]
        early = bool((positions[:, -1:] < positions).any())
        require(not early, f"the last column of {name} is not the latest, and accuracy counts that one alone")
    counts = [f"{columns.stop - columns.start} of {name}" for name, columns in several.items()]
    return f"the loss has {' and '.join(counts)}, and accuracy counts the last"


@checks(Task)
def has_chance_level(task: Task) -> None:
    """`chance` is the accuracy of the best constant guess, for each answer"""
    require(set(task.chance) == set(task.answers), f"it is for {', '.join(task.chance)}, not for every answer")
    batch = draw(task, lengths_of(task)[-1], size=MANY).scored()
    for name, level in task.chance.items():
        require(0 < level < 1, f"that of {name} is {level}")
        column = batch.targets[:, batch.columns[name].start]
        share = float(column.bincount().max()) / MANY
        slack = 5 * sqrt(level * (1 - level) / MANY) + 1e-9
        require(share <= level + slack, f"one guess of {name} is right in {share:.0%}, and chance says {level:.0%}")


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
                right, spelt = targets[columns.start], " ".join(map(task.spell, row))
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
        reason = str(error).splitlines()[0]
        raise Fails(f'it cannot run under torch.func.vmap ({reason}); declare stacking = "loop"') from error
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
    require(all(isinstance(text, str) and text for text in spelt), "it is empty or no text for some")
