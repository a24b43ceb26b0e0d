"""The sequence that a task's docstring draws is one of the task, and the answers below it are right."""

import re
from itertools import pairwise
from typing import Any

import interpreters
import pytest
from test_tasks import oracle

from latebloom.tasks import Composite, CoupledKey, CoupledValue, ModularSum, Task
from latebloom.tasks.keyed import KeyedTask

SETTINGS: dict[type[Task], dict[str, Any]] = {
    ModularSum: {"modulus": 5},
    Composite: {"modulus": 5},
    CoupledKey: {"modulus": 3},
    CoupledValue: {"values": 5},
}
LENGTHS = {"modular_sum": 3, "recall": 2, "word_problem": 3, "parity_recall": 8, "conditional_mqar": 8}
"""The lengths of drawings that do not name theirs."""
OWN = [name for name, kind in Task.members.items() if kind.__module__.startswith("latebloom.")]


def read(kind: type[Task]) -> dict[str, list[tuple[int, str]]]:
    """Return the rows of the drawing: label -> (column, word) pairs."""
    rows: dict[str, list[tuple[int, str]]] = {}
    lines = (kind.__doc__ or "").splitlines()
    start = next(line.index("tokens ") for line in lines if re.search(r"\btokens  ", line))
    for line in lines:
        if found := re.match(r"(\w[\w,]*(?: \w+)*)(?:  |$)", line[start:]):
            words = re.finditer(r"\S+", line[start + found.end() :])
            rows[found[1]] = [(found.end() + word.start(), word.group()) for word in words]
    return rows


def queries(task: Task, words: list[str]) -> dict[str, list[tuple[int, str]]]:
    if hasattr(interpreters, task.name):
        return getattr(interpreters, task.name)(task, list(enumerate(words)))
    found = {"sum": [], "recall": []}
    for place, (name, answer) in oracle(words, getattr(task, "modulus", 1)).items():
        found["sum" if name == "running" else name].append((place, answer))
    return {name: found[name] for name in task.answers}


@pytest.mark.parametrize("name", OWN)
def test_the_drawing_of_a_task_is_right(name):
    kind: Any = Task.members[name]
    rows = read(kind)
    tokens = [(column, word) for column, word in rows.pop("tokens") if word != "..."]
    words, columns = [word for _, word in tokens], [column for column, _ in tokens]
    assert rows, "it draws no answers"
    for label, drawn in rows.items():
        task = kind(**SETTINGS.get(kind, {}), **({"coupled": True} if "coupled" in label else {}))
        known = {task.spell(token) for token in range(task.vocabulary_size)}
        assert set(words) <= known
        length = re.search(r"length (\d+)", kind.__doc__)
        if "..." not in kind.__doc__:
            assert len(words) == task.token_count(int(length[1]) if length else LENGTHS[name])
        expected = queries(task, words)
        if label in task.answers:
            expected = {label: expected[label]}
        elif label in ("outcome", "answer"):
            expected = {answer: asked[-1:] for answer, asked in expected.items()}
        said = sorted(query for asked in expected.values() for query in asked)
        ends = dict(pairwise([*columns, 10**6]))
        places = [next(i for i, start in enumerate(columns) if start <= column < ends[start]) for column, _ in drawn]
        assert list(zip(places, (word for _, word in drawn), strict=True)) == said, label


def test_keys_of_two_tokens_allow_256_times_the_training_length():
    keyed = [kind for kind in Task.members.values() if issubclass(kind, KeyedTask)]
    assert len(keyed) == 10
    for kind in keyed:
        settings: dict[str, Any] = {"key_tokens": 2}
        assert (kind(**settings).longest or 0) >= 256 * 25, kind
