"""The tasks that mix state and recall, checked by interpreters in plain Python."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import interpreters
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebloom import Phase, RunConfig, run
from latebloom.engine.loop import run_stacked
from latebloom.errors import ConfigError
from latebloom.models import hybrid
from latebloom.tasks import (
    MQAR,
    Composite,
    ConditionalMQAR,
    CoupledKey,
    CoupledValue,
    ParityRecall,
    Recall,
    Repl,
    StateBasedRecall,
    Task,
    WordProblem,
    WordRecall,
)

seeds = st.integers(0, 2**63 - 1)
SMALL: Any = {"keys": 16, "values": 7}
TASKS = [
    *(WordProblem(group=group) for group in ("S3", "S4", "S5", "A4", "A5", "Z2", "Z7")),
    *(WordProblem(group=group, moves="generators") for group in ("S3", "S5", "A5", "Z7")),
    WordRecall(**SMALL),
    WordRecall(**SMALL, group="S4", moves="generators", order="interleaved", key_tokens=2),
    WordRecall(**SMALL, group="Z7", order="pairs-first"),
    ParityRecall(**SMALL),
    ParityRecall(**SMALL, coupled=True, key_tokens=2),
    ConditionalMQAR(**SMALL),
    ConditionalMQAR(**SMALL, key_tokens=2),
    MQAR(**SMALL),
    MQAR(**SMALL, key_tokens=2),
    CoupledKey(**SMALL, modulus=3),
    CoupledKey(**SMALL, modulus=3, key_tokens=2, order="interleaved"),
    CoupledKey(**SMALL, modulus=3, order="pairs-first"),
    CoupledValue(**SMALL),
    CoupledValue(**SMALL, key_tokens=2),
    StateBasedRecall(**SMALL),
    StateBasedRecall(**SMALL, key_tokens=2, moved=False),
    StateBasedRecall(**SMALL, grows="cells", held=3),
    StateBasedRecall(**SMALL, grows="swaps", held=6),
    Repl(**SMALL),
    Repl(**SMALL, key_tokens=2, variables=5),
]


def name_of(task: Task) -> str:
    own = {name: getattr(task, name) for name in ("group", "moves", "key_tokens", "grows") if hasattr(task, name)}
    return "-".join(map(str, (task.name, *own.values())))


@pytest.mark.parametrize("task", TASKS, ids=name_of)
@settings(max_examples=12)
@given(st.integers(0, 20), st.sampled_from(["aligned", "outcome"]), st.sampled_from(["every", "last"]), seeds)
def test_positions_and_targets_are_what_an_interpreter_says(task, more, supervision, score, seed):
    task = replace(task, supervision=supervision)
    every = hasattr(task, "score") and score == "every"
    if hasattr(task, "score"):
        task = replace(task, score=score)
    length = task.shortest + more
    batch = task.batch(seed, "train", 3, length=length, size=3)
    assert batch.tokens.shape == (3, task.token_count(length))
    assert tuple(batch.columns) == task.answers
    for row in range(3):
        words = interpreters.spelt(task, batch.tokens[row].tolist())
        expected = getattr(interpreters, task.name)(task, words)
        for name, columns in batch.columns.items():
            asked = zip(batch.positions[row, columns].tolist(), batch.targets[row, columns].tolist(), strict=True)
            found = [(place, task.spell(target)) for place, target in asked]
            assert found == (expected[name] if supervision == "aligned" else expected[name][-1:]), words
        scored = batch.scored()
        for name, columns in scored.columns.items():
            queries = expected[name] if every and supervision == "aligned" else expected[name][-1:]
            assert [task.spell(t) for t in scored.targets[row, columns].tolist()] == [word for _, word in queries]


@given(st.integers(2, 40), st.sampled_from(["digits-first", "pairs-first", "interleaved"]), seeds)
def test_composite_and_recall_with_keys_of_two_tokens_are_those_with_one_token_spelt_longer(length, order, seed):
    for task in (Composite(keys=5, key_tokens=2, order=order), Recall(keys=7, key_tokens=2)):
        batch = task.batch(seed, "train", 0, length=length, size=3)
        assert batch.tokens.shape[1] == task.token_count(length)
        for row, tokens in enumerate(batch.tokens.tolist()):
            words = interpreters.spelt(task, tokens)
            keys = [word for _, word in words if word.startswith("k")]
            assert len(set(keys[:-1])) == len(keys) - 1 == task.keys_needed(length)
            (asked_at, key) = words[-1]
            pairs = {one: other for (_, one), (_, other) in pairwise(words) if one.startswith("k")}
            assert (asked_at, pairs[key]) == (int(batch.positions[row, -1]), task.spell(int(batch.targets[row, -1])))
            if isinstance(task, Composite):
                digits = [int(word) for _, word in words if word.isdecimal()]
                column = batch.columns["sum"].stop - 1
                assert int(batch.targets[row, column]) == sum(digits) % task.modulus


def test_a_pointer_that_is_asked_has_moved_and_all_are_asked():
    for length in (9, 10, 11):
        for task in (StateBasedRecall(), StateBasedRecall(grows="cells", held=2)):
            scored = task.batch(0, "train", 0, length=length, size=2000).scored()
            asked, origin = scored.tokens[:, -1], scored.targets[:, 0]
            assert not bool((asked == origin).any())
            assert asked.unique().numel() == 5
            assert int(asked.bincount().max()) < 500


def test_the_two_axes_grow_alone():
    both, cells, swaps = (StateBasedRecall(grows=grows, held=12) for grows in ("both", "cells", "swaps"))
    assert [both.counts(n) for n in (25, 50)] == [(13, 12), (25, 25)]
    assert [cells.counts(n) for n in (25, 50)] == [(13, 12), (25, 12)]
    assert [swaps.counts(n) for n in (25, 50)] == [(12, 12), (12, 25)]
    assert both.vocabulary_size == cells.vocabulary_size == swaps.vocabulary_size


def test_every_group_has_its_elements_and_its_moves_generate_them():
    orders = {"S3": 6, "S4": 24, "S5": 120, "A4": 12, "A5": 60, "Z6": 6}
    for group, order in orders.items():
        for moves in ("all", "generators"):
            task = WordProblem(group=group, moves=moves)
            assert task.vocabulary_size == order
            batch = task.batch(0, "train", 0, length=9, size=1500)
            assert batch.targets.unique().numel() == order, group
            drawn = batch.tokens.unique().numel()
            assert drawn == (
                order
                if moves == "all"
                else {"S": {3: 3, 4: 6, 5: 10}, "A": {4: 8, 5: 20}, "Z": {6: 2}}[group[0]][task.points]
            )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordProblem(group="S9"), r"group: 'S9' is not known; .*choices: S3, S4, S5, A4, A5, Z2"),
        (lambda: WordProblem(group="Z0"), "group: 'Z0' is not possible; it must be Zn with an n of 2 or more"),
        (
            lambda: WordProblem(group="Z2", moves="generators"),
            "moves: 'generators' is not possible; it must be all for Z2",
        ),
        (lambda: Repl(variables=0), "variables: 0 is not possible; it must be from 2 to 5"),
        (lambda: Repl(variables=5, values=4), "values: 4 is not possible; it must be 5 or more, one per variable"),
        (
            lambda: StateBasedRecall(grows="swaps", held=4),
            "held: 4 is not possible; it must be from 5, a cell .* to 256",
        ),
        (lambda: MQAR(key_tokens=3), "key_tokens: 3 is not known; choices: 1, 2"),  # type: ignore[arg-type]
        (
            lambda: Recall(keys=8, key_tokens=2).check_length(65),
            "length: 65 needs task.keys of 9 or more; this task has 8 at each place of a key, enough for a length of 6",
        ),
        (
            lambda: ParityRecall(keys=8).check_length(3),
            "length: 3 is too short; a parity_recall sequence has at least 4",
        ),
    ],
)
def test_mistakes_are_one_sentence(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("tokens", [1, 2])
def test_the_longest_length_has_just_enough_keys(tokens):
    for kind in (
        Recall,
        Composite,
        MQAR,
        ParityRecall,
        ConditionalMQAR,
        CoupledKey,
        CoupledValue,
        StateBasedRecall,
        Repl,
    ):
        task = kind(keys=6, key_tokens=tokens)
        assert task.keys_needed(task.longest) <= 6**tokens < task.keys_needed(task.longest + 1)
        if task.longest >= task.shortest:
            assert task.batch(0, "test", 0, length=task.longest, size=1).tokens.shape[1] == task.token_count(
                task.longest
            )


def test_ten_thousand_items_take_little_memory():
    script = """
import resource, torch
from latebloom.tasks import *
two = {"keys": 128, "key_tokens": 2}
torch.ones(1).argsort()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kinds = (Recall, Composite, MQAR, ParityRecall, ConditionalMQAR, CoupledKey, CoupledValue, StateBasedRecall, Repl)
for task in (WordProblem(group="S5"), *(kind(**two) for kind in (*kinds, WordRecall))):
    assert task.batch(0, "test", 0, length=10_000, size=4).tokens.shape == (4, task.token_count(10_000))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 0.2  # GiB, for four sequences


SHORT: Any = {"keys": 16, "values": 6}
TRAINED = [
    WordProblem(group="A5", score="every"),
    WordRecall(**SHORT),
    ParityRecall(**SHORT, key_tokens=2),
    ConditionalMQAR(**SHORT),
    MQAR(**SHORT),
    CoupledKey(**SHORT),
    CoupledValue(**SHORT),
    StateBasedRecall(**SHORT),
    Repl(**SHORT),
]


@pytest.mark.parametrize("task", TRAINED, ids=lambda task: task.name)
def test_a_task_trains_alone_and_in_a_stack(task, tiny, tmp_path):
    training = replace(tiny.training, length=max(12, task.shortest), steps=4, full=Phase(warmup=1, batch_size=4))
    evaluation = replace(tiny.evaluation, multiples=(1, 2), sequences=8)
    first = RunConfig(task=task, model=hybrid(width=8, blocks=1), training=training, evaluation=evaluation)
    configs = {f"seed-{seed}": replace(first, seed=seed) for seed in (0, 1)}
    together = run_stacked(configs, tmp_path, torch.device("cpu"))
    assert together.failed == {}
    for name, config in configs.items():
        alone, stacked = run(config, device="cpu"), together.trained[name]
        tokens = task.batch(0, "test", 0, length=training.length, size=4).tokens
        # Not the weights: a key's bias has no effect, so its gradient is rounding alone, which Adam makes steps of.
        torch.testing.assert_close(alone.model(tokens), stacked.model(tokens), rtol=1e-3, atol=1e-3)
        for count in stacked.evaluation.counts:
            scored = task.batch(0, "test", 0, length=count.length, size=1).scored()
            widths = {answer: columns.stop - columns.start for answer, columns in scored.columns.items()}
            assert count.queries == {answer: width for answer, width in widths.items() if width > 1}


def test_a_task_that_is_drawn_model_by_model_keeps_what_is_scored(monkeypatch):
    monkeypatch.setattr(MQAR, "stacking", "loop")
    kept = []

    def targets(seed):
        batch = MQAR().batch(seed, "train", 0, length=9, size=2)
        kept.append(batch)
        return batch.scored().targets

    together = torch.func.vmap(targets)(torch.arange(2))
    assert kept[0].every == ("recall",)
    assert together.shape == (2, 2, 4)


def test_the_documentation_has_every_task_with_its_state_answer():
    page = (Path(__file__).parents[2] / "docs" / "components.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    own = {name: task for name, task in Task.members.items() if task.__module__.startswith("latebloom.")}
    assert set(own) <= set(rows)
    for name, task in own.items():
        state = rows[name].split("|")[4].strip()
        assert state == (f"`{task.state_answer}`" if task.state_answer else "")
