"""The tasks, checked by an oracle in plain Python that reads the spelt tokens and works the answers out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latebloom.errors import ConfigError
from latebloom.tasks import Composite, ModularSum, Recall, Stream, Task

ORDERS = ("digits-first", "pairs-first", "interleaved")
seeds = st.integers(0, 2**63 - 1)


def oracle(words: list[str], modulus: int) -> dict[int, tuple[str, str]]:
    """Read a sequence as a person would: position -> (answer's name, answer), running sums included."""
    total, table, answers = 0, {}, {}
    place = 0
    while place < len(words):
        word = words[place]
        if word == "SUM":
            answers[place] = ("sum", str(total % modulus))
        elif word == "ASK":
            place += 1
            answers[place] = ("recall", table[words[place]])
        elif word.startswith("k"):
            assert word not in table, "a key stands twice"
            place += 1
            assert words[place].startswith("v"), "a key without a value"
            table[word] = words[place]
        else:
            total += int(word)
            answers[place] = ("running", str(total % modulus))
        place += 1
    return answers


def check(task: Task, length: int, seed: int, modulus: int, supervision: str) -> None:
    batch = task.batch(seed, "train", 3, length=length, size=5)
    assert batch.tokens.shape == (5, task.token_count(length))
    assert int(batch.tokens.min()) >= 0
    assert int(batch.tokens.max()) < task.vocabulary_size
    for row in range(5):
        words = [task.spell(token) for token in batch.tokens[row].tolist()]
        expected = oracle(words, modulus)
        if supervision == "outcome":
            expected = {place: answer for place, answer in expected.items() if answer[0] != "running"}
        asked = batch.positions[row].tolist()
        assert sorted(asked) == sorted(expected), words
        for column, place in enumerate(asked):
            assert task.spell(int(batch.targets[row, column])) == expected[place][1], words
        for name, columns in batch.columns.items():
            assert expected[asked[columns.stop - 1]][0] == name  # the last column of each is the one that is scored


@given(st.integers(2, 40), st.sampled_from(ORDERS), st.sampled_from(["aligned", "outcome"]), st.integers(2, 12), seeds)
def test_composite(length, order, supervision, modulus, seed):
    task = Composite(modulus=modulus, keys=20, values=7, order=order, supervision=supervision)
    check(task, length, seed, modulus, supervision)
    words = [task.spell(token) for token in task.batch(seed, "test", 0, length=length, size=1).tokens[0].tolist()]
    items = words[: words.index("SUM")]
    digits = [word for word in items if word.isdecimal()]
    assert len(digits) == -(-length // 2)
    assert len(items) - len(digits) == 2 * (length // 2)
    if order == "digits-first":
        assert items[: len(digits)] == digits
    if order == "pairs-first":
        assert items[len(items) - len(digits) :] == digits


@given(st.integers(1, 40), st.sampled_from(["aligned", "outcome"]), st.integers(2, 12), seeds)
def test_modular_sum(length, supervision, modulus, seed):
    check(ModularSum(modulus=modulus, supervision=supervision), length, seed, modulus, supervision)


@given(st.integers(1, 20), seeds)
def test_recall(length, seed):
    check(Recall(keys=20, values=7), length, seed, 1, "outcome")


def test_interleaved_orders_are_all_equally_likely():
    """Two digits and two pairs can stand in six orders."""
    task = Composite(modulus=3, keys=8, values=4, order="interleaved")
    tokens = task.batch(0, "train", 0, length=4, size=6000).tokens
    patterns: dict[str, int] = {}
    for row in tokens.tolist():
        pattern = "".join("d" if task.spell(t).isdecimal() else task.spell(t)[0] for t in row[:6])
        patterns[pattern] = patterns.get(pattern, 0) + 1
    assert sorted(patterns) == ["ddkvkv", "dkvdkv", "dkvkvd", "kvddkv", "kvdkvd", "kvkvdd"]
    assert all(850 < count < 1150 for count in patterns.values())


ALL = [Composite(order=order) for order in ORDERS] + [ModularSum(), Recall()]


@pytest.mark.parametrize("task", ALL, ids=lambda task: f"{task.name}-{getattr(task, 'order', '')}")
def test_a_batch_is_a_pure_function_of_its_place(task):
    def tokens(seed=1, split="train", index=7, **more):
        return task.batch(seed, split, index, length=6, size=8, **more).tokens

    first = tokens()
    torch.manual_seed(99)  # no global state enters
    assert torch.equal(first, tokens())
    assert torch.equal(first[3:], task.batch(1, "train", 7, length=6, size=5, first_row=3).tokens)
    for other in (tokens(seed=2), tokens(split="validation"), tokens(split="test"), tokens(index=8)):
        assert not torch.equal(first, other)


@pytest.mark.parametrize("task", ALL, ids=lambda task: f"{task.name}-{getattr(task, 'order', '')}")
def test_many_seeds_in_one_call_get_what_each_would_get_alone(task):
    seeds = torch.tensor([0, 1, 5, 2**62])
    index = torch.tensor(4)

    def draw(seed):
        batch = task.batch(seed, "train", index, length=6, size=3)
        return batch.tokens, batch.targets

    together = torch.func.vmap(draw)(seeds)
    for i, seed in enumerate(seeds.tolist()):
        alone = task.batch(seed, "train", 4, length=6, size=3)
        assert torch.equal(together[0][i], alone.tokens)
        assert torch.equal(together[1][i], alone.targets)


def test_scored_keeps_the_final_answers_and_without_leaves_some_out():
    batch = Composite(modulus=5).batch(0, "train", 0, length=9, size=4)
    scored = batch.scored()
    assert scored.positions.shape == (4, 2)
    assert torch.equal(scored.targets[:, 0], batch.targets[:, batch.columns["sum"]][:, -1])
    assert torch.equal(scored.targets[:, 1], batch.targets[:, -1])
    sums = batch.without(["recall"])
    assert list(sums.columns) == ["sum"]
    assert torch.equal(sums.targets, batch.targets[:, :-1])
    recalls = batch.without(["sum"])
    assert recalls.columns == {"recall": slice(0, 1)}
    assert torch.equal(recalls.positions, batch.positions[:, -1:])


def test_a_length_that_needs_more_keys_than_there_are_is_an_error():
    with pytest.raises(ConfigError, match=r"length: 42 needs task.keys of 21 or more; this task has 20.*length of 41"):
        Composite(keys=20).batch(0, "test", 0, length=42, size=1)
    assert Composite(keys=20).batch(0, "test", 0, length=41, size=1).tokens.shape[1] == 21 + 40 + 3
    with pytest.raises(ConfigError, match="21 or more"):
        Recall(keys=20).batch(0, "test", 0, length=21, size=1)
    with pytest.raises(ConfigError, match="1 is too short; a composite sequence has at least 2"):
        Composite().batch(0, "test", 0, length=1, size=1)


def test_training_lengths_cover_two_to_the_training_length_evenly_and_the_same_for_every_seed():
    task = Composite()
    lengths = [Stream(task, 0, 25).length(index) for index in range(2400)]
    assert lengths == [Stream(task, 1, 25).length(index) for index in range(2400)]
    counts = [lengths.count(length) for length in range(2, 26)]
    assert sum(counts) == 2400
    assert min(counts) > 60
    assert Stream(task, 0, 25).batch(11, size=3).tokens.shape == (3, task.token_count(lengths[11]))


def test_chance_is_what_guessing_gets():
    assert Composite(modulus=5, values=32).chance == {"sum": 0.2, "recall": 1 / 32}


def test_a_task_defined_elsewhere_is_known_by_its_name():
    from dataclasses import dataclass
    from typing import Literal

    from latebloom.config import RunConfig
    from latebloom.validation import read_settings

    try:

        @dataclass(frozen=True, kw_only=True)
        class Doubled(ModularSum):
            name: Literal["doubled"] = "doubled"  # type: ignore[assignment]

        config = RunConfig(task=Doubled(modulus=3))
        assert read_settings(RunConfig, config.to_json()) == config
    finally:
        Task.members.pop("doubled", None)
