"""Accuracy by length, reach and cliff; memory that does not grow with the length."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from latebloom import Composite, Evaluation, Recall, SequenceModel, evaluate
from latebloom.errors import CheckpointError, ConfigError
from latebloom.evaluation import Count, count_correct
from latebloom.evaluation import accuracy as accuracy_module
from latebloom.evaluation.accuracy import apply_to_one
from latebloom.layers.recurrence import Recurrence
from latebloom.models import sequence_model
from latebloom.models.settings import Model
from latebloom.tasks import ParityRecall

TASK = Composite(modulus=5, keys=40, values=8)


class Solver(nn.Module):
    """Answers by working the sequence out; above some length it answers the sum wrongly, on odd keys the recall."""

    def __init__(self, fails_from: int = 10**9, forgets: bool = False) -> None:
        super().__init__()
        self.fails_from, self.forgets = fails_from, forgets

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = torch.zeros(*positions.shape, TASK.vocabulary_size)
        for row, sequence in enumerate(tokens.tolist()):
            words = [TASK.spell(token) for token in sequence]
            total = sum(int(word) for word in words if word.isdecimal()) % TASK.modulus
            place = words.index(words[-1])
            value = sequence[place + 1]
            if len(words) >= TASK.token_count(self.fails_from):
                total = (total + 1) % TASK.modulus
            if self.forgets and int(words[-1][1:]) % 2:
                value = 0
            logits[row, 0, total] = 1.0
            logits[row, 1, value] = 1.0
        return logits


def count_of(model: nn.Module, length: int, *, sequences: int, seed: int) -> Count:
    each, seeds = partial(apply_to_one, model), torch.tensor([seed])
    (count,) = count_correct(each, TASK, length, sequences=sequences, seeds=seeds)
    return count


def test_a_model_that_knows_the_answers_gets_everything_right():
    result = evaluate(Solver(), TASK, [25, 10, 50, 10], training_length=25, sequences=40)
    assert result.lengths == [10, 25, 50]
    assert all(count.accuracy == 1.0 for count in result.counts)
    assert result.reach == 2.0
    assert result.cliff is None


def test_all_answers_must_be_right():
    count = count_of(Solver(forgets=True), 12, sequences=200, seed=0)
    assert count.answers["sum"] == 200
    assert count.answers["recall"] == count.correct
    assert 0.3 < count.accuracy < 0.7
    low, high = count.interval
    assert low < count.accuracy < high


def test_a_model_that_stops_adding_has_a_cliff():
    result = evaluate(Solver(fails_from=30), TASK, [10, 25, 30, 50, 75], training_length=25, sequences=20)
    assert result.accuracy(25) == 1.0
    assert result.accuracy(30) == 0.0
    assert result.accuracy(30, "recall") == 1.0
    assert (result.reach, result.cliff) == (1.0, 30)
    with pytest.raises(KeyError, match="length 40 was not tested; tested: 10, 25, 30, 50, 75"):
        result.accuracy(40)


def counts(table: dict[int, float]) -> Evaluation:
    rows = tuple(Count(length, 1000, round(1000 * level), {}) for length, level in table.items())
    return Evaluation(25, rows, {}, 0.1)


@pytest.mark.parametrize(
    ("table", "reach", "cliff"),
    [
        ({25: 1.0, 50: 0.9, 75: 0.899, 100: 1.0}, 2.0, None),  # every length up to it must hold
        ({25: 0.89, 50: 1.0}, 0.0, None),
        ({10: 0.5, 25: 1.0, 50: 0.2}, 0.0, 50),
        ({25: 0.92, 50: 0.47}, 1.0, None),  # not below half of 0.92
        ({25: 0.92, 50: 0.45}, 1.0, 50),
        ({25: 1.0, 50: 0.6, 75: 0.1}, 1.0, None),  # a fall after twice the training length is no cliff
        ({50: 0.1}, 0.0, None),
    ],
)
def test_reach_and_cliff_by_their_definitions(table, reach, cliff):
    result = counts(table)
    assert (result.reach, result.cliff) == (reach, cliff)


def test_no_cliff_is_not_the_same_as_not_looked():
    assert counts({25: 1.0, 50: 1.0}).cliff_tested
    assert not counts({50: 1.0, 100: 0.1}).cliff_tested
    assert not counts({25: 1.0, 75: 0.1}).cliff_tested


@given(st.dictionaries(st.integers(2, 400), st.floats(0, 1), min_size=1))
def test_reach_is_a_tested_length_and_everything_up_to_it_holds(table):
    result = counts(dict(sorted(table.items())))
    held = [count for count in result.counts if count.length <= result.reach * 25 + 1e-9]
    assert all(count.accuracy >= 0.9 for count in held)
    beyond = [count for count in result.counts if count.length > result.reach * 25 + 1e-9]
    assert not beyond or beyond[0].accuracy < 0.9


def test_results_do_not_depend_on_how_many_sequences_are_measured_at_once(monkeypatch):
    whole = count_of(Solver(forgets=True), 20, sequences=50, seed=3)
    monkeypatch.setitem(accuracy_module.TOKENS_AT_ONCE, "cpu", 100)
    assert count_of(Solver(forgets=True), 20, sequences=50, seed=3) == whole
    assert count_of(Solver(forgets=True), 20, sequences=50, seed=4) != whole


def test_json_comes_back_the_same():
    result = evaluate(Solver(forgets=True), TASK, [10, 25], training_length=25, sequences=30)
    data = result.to_json()
    assert Evaluation.from_json(data) == result
    assert data["lengths"][0]["interval"] == list(result.counts[0].interval)
    with pytest.raises(CheckpointError, match="this is not an evaluation"):
        Evaluation.from_json({"lengths": 3})


def test_bad_lengths_are_refused():
    with pytest.raises(ConfigError, match="lengths: the list is empty"):
        evaluate(Solver(), TASK, [], training_length=25)
    with pytest.raises(ConfigError, match=r"lengths: 100 needs task.keys of 50 or more; this task has 40"):
        evaluate(Solver(), TASK, [25, 100], training_length=25)
    with pytest.raises(ConfigError, match="sequences: 0"):
        evaluate(Solver(), TASK, [25], training_length=25, sequences=0)
    with pytest.raises(ConfigError, match=r"lengths: 41 needs task.keys of 41"):
        evaluate(Solver(), Recall(keys=40), [41], training_length=25)


@pytest.mark.parametrize(
    ("name", "stacking"), [("lstm", "vmap"), ("lstm", "loop"), ("kda", "vmap"), ("mamba2", "loop"), ("mamba3", "vmap")]
)
def test_a_model_without_attention_is_evaluated_in_pieces_with_the_same_results(name, stacking, monkeypatch):
    monkeypatch.setattr(Recurrence.find(name), "stacking", stacking)
    torch.manual_seed(0)
    models = [SequenceModel(Model(layout="rm", width=8, blocks=2, recurrence=name), 12) for _ in range(2)]
    tokens, positions = torch.randint(12, (3, 50)), torch.tensor([[0, 49], [19, 20], [45, 3]])
    stacked = {key: torch.stack([model.state_dict()[key] for model in models]) for key in models[0].state_dict()}

    def each() -> tuple[Tensor, Tensor]:
        alone = torch.stack([model(tokens, positions) for model in models])
        return alone, vmap(lambda weights: functional_call(models[0], weights, (tokens, positions)))(stacked)

    with torch.inference_mode():
        whole = each()
        monkeypatch.setattr(sequence_model, "PIECE", 20)
        seen = []
        models[0].embedding.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[-2]))
        torch.testing.assert_close(each(), whole)
    assert seen == [20, 20, 10] * 2  # alone, and in the stack
    again = models[0](tokens, positions)  # states are not carried into the next call, and training is never in pieces
    torch.testing.assert_close(again, whole[0][0])
    assert seen[-1] == 50


def test_a_hundred_thousand_tokens_are_evaluated_in_bounded_memory():
    script = """
import resource, torch
torch.set_num_threads(1)
from latebloom import ModularSum, SequenceModel, evaluate, lstm
model = SequenceModel(lstm(width=16, blocks=1, recurrence="mamba2"), 11)
evaluate(model, ModularSum(), [100], training_length=25, sequences=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
evaluate(model, ModularSum(), [100_000], training_length=25, sequences=1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 64  # MiB; the features of one layer alone would have 25 as a whole


def test_the_mean_beyond_is_over_lengths_beyond_the_training_length_or_over_all_where_none_is():
    def counted(**right):
        counts = tuple(Count(int(name[1:]), 10, count, {"sum": count}) for name, count in right.items())
        return Evaluation(25, counts, {"sum": 0.1}, 0.1)

    assert counted(n10=9, n25=8, n50=4, n75=2).mean_beyond == pytest.approx(0.3)
    assert counted(n10=9, n25=8).mean_beyond == pytest.approx(0.85)


class Forgetful(nn.Module):
    """Knows the parity, and the value of a read unless its key is odd."""

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = torch.zeros(*positions.shape, QUERIES.vocabulary_size)
        for row, sequence in enumerate(tokens.tolist()):
            said: Any = QUERIES.oracle(sequence)
            for column, answer in enumerate(said["parity"] + said["recall"]):
                key = QUERIES.spell(sequence[int(positions[row, column])])
                logits[row, column, 0 if key.startswith("k") and int(key[1:]) % 2 else answer] = 1.0
        return logits


QUERIES = ParityRecall(keys=20, values=8)


def test_every_query_counts_where_a_task_says_so():
    result = evaluate(Forgetful(), QUERIES, [16, 8], training_length=16, sequences=100)
    short, long = result.counts
    assert (short.queries, long.queries) == ({"parity": 4, "recall": 2}, {"parity": 8, "recall": 4})
    batch = QUERIES.batch(0, "test", 0, length=16, size=100)
    reads = batch.positions[:, batch.columns["recall"]]
    even = batch.tokens.gather(1, reads) % 2 == QUERIES.vocabulary.first_key % 2
    assert long.answers == {"parity": 800, "recall": int(even.sum())}
    assert long.correct == int(even.all(dim=1).sum())  # a sequence is right if every query is
    assert long.accuracy_of("recall") == pytest.approx(float(even.float().mean()))
    assert result.chance_all == 0.5**4 * (1 / 8) ** 2  # at the shortest length
    assert evaluate(Solver(), TASK, [10], training_length=25, sequences=5).counts[0].queries == {}


def test_json_keeps_the_number_of_queries():
    result = evaluate(Forgetful(), QUERIES, [8, 16], training_length=16, sequences=20)
    assert Evaluation.from_json(result.to_json()) == result
    old = evaluate(Solver(), TASK, [10], training_length=25, sequences=5).to_json()
    assert "queries" not in str(old)


@pytest.mark.parametrize("together", [True, False])
def test_the_interval_of_several_queries_covers_the_truth_even_if_they_are_right_together(together):
    """Forty sequences of ten queries each: their queries agree always, or only by chance."""
    generator = torch.Generator().manual_seed(0)
    covered, truth = 0, 0.7
    for _ in range(300):
        drawn = torch.rand(40, 1 if together else 10, generator=generator).expand(40, 10) < truth
        low, high = Count(25, 40, 0, {"recall": int(drawn.sum())}, {"recall": 10}).interval_of("recall")
        covered += low <= truth <= high
    assert covered >= 0.95 * 300


@pytest.mark.parametrize("value", ["x", -1, 1.5, None, [], {}, 10**30, "nothing"])
def test_an_evaluation_with_a_value_of_the_wrong_form_is_one_sentence(value):
    """Runs of the first version have no digests, so a changed file is noticed here or not at all."""
    right = Evaluation.of(5, (Count(5, 10, 4, {"sum": 9, "recall": 8}, {"sum": 2}),), {"sum": 0.1, "recall": 0.2})
    places = (
        ("training_length",), ("chance",), ("chance_of",), ("chance_of", "sum"), ("lengths",), ("lengths", 0),
        ("lengths", 0, "length"), ("lengths", 0, "sequences"), ("lengths", 0, "correct"), ("lengths", 0, "answers"),
        ("lengths", 0, "answers", "sum"), ("lengths", 0, "answers", "sum", "correct"),
        ("lengths", 0, "answers", "sum", "queries"),
    )  # fmt: skip
    # Not every answer has a chance level, and a number of queries is written only if it is not 1.
    legal = [({}, ("chance_of",)), ("nothing", ("chance_of", "sum")), ("nothing", places[-1])]
    for place in places:
        *above, last = place
        data = right.to_json()
        inner: Any = data
        for name in above:
            inner = inner[name]
        if value == "nothing":
            del inner[last]
        else:
            inner[last] = value
        if (value, place) in legal:
            Evaluation.from_json(data).score  # noqa: B018
        else:
            with pytest.raises(CheckpointError, match="this is not an evaluation"):
                Evaluation.from_json(data).score  # noqa: B018
