"""Probes read hand-built models correctly, and their opposites too."""

from math import exp
from typing import Any

import pytest
import torch
from planted import BOTH, RECALL, SUM, CountingModel, Places, plant, predict

from latebloom import SequenceModel
from latebloom.layers.attention import Alibi
from latebloom.models.settings import Attention, Model, hybrid, lstm, transformer
from latebloom.probes.ablation import ATTENTION_OFF, INTACT, Ablation
from latebloom.probes.positions import HeadPositions
from latebloom.probes.probe import NotMeasurable
from latebloom.probes.sharpness import Sharpness, best_head_weights, majority_lost
from latebloom.probes.sources import find_source
from latebloom.probes.stack import Stack
from latebloom.probes.state import State
from latebloom.probes.subject import Subject
from latebloom.report.mechanisms import verdicts
from latebloom.results.probes import Probed
from latebloom.tasks import MQAR, Composite, CoupledKey, ModularSum, ParityRecall


def test_the_planted_models_are_what_they_are_said_to_be():
    assert predict(plant(SUM, "r"), SUM, 300) == {"sum": 1.0}
    assert predict(plant(RECALL, "a"), RECALL, 50) == {"recall": 1.0}
    assert predict(plant(BOTH, "ra"), BOTH, 100) == {"sum": 1.0, "recall": 1.0}


# Sharpness


@pytest.mark.parametrize("task", [RECALL, BOTH, Composite(order="interleaved", key_tokens=2), MQAR(), ParityRecall()])
def test_the_source_of_an_answer_is_the_value_that_the_task_asks_for(task):
    batch = task.batch(1, "test", 0, length=20, size=16)
    queries, places = find_source(task, batch)
    known = places >= 0
    assert known.double().mean() > 0.9
    rows = torch.arange(16)[known]
    column = batch.columns["recall"].stop - 1
    assert torch.equal(batch.tokens[rows, places[known]], batch.targets[rows, column])
    size = task.key_tokens  # the asked key ends at the query, and stands before the value
    for row, place in zip(rows.tolist(), places[known].tolist(), strict=True):
        query = int(queries[row])
        asked = batch.tokens[row, query - size + 1 : query + 1]
        assert torch.equal(batch.tokens[row, place - size : place], asked)


def test_nothing_is_asked_for_where_only_state_is_tracked():
    _, places = find_source(SUM, SUM.batch(0, "test", 0, length=9, size=4))
    assert places.tolist() == [-1] * 4
    table = Sharpness(multiples=(1,)).measure(Subject(SequenceModel(transformer(width=8, heads=2), 4), SUM, 9))
    assert set(table.values("right")) == {None}
    assert majority_lost(table) is None


def test_an_exact_head_is_sharp_at_every_length_and_an_empty_one_nowhere():
    sharp = Sharpness(multiples=(1, 5), sequences=16).measure(Subject(plant(RECALL, "a"), RECALL, 10))
    assert min(sharp.values("right")) > 0.99
    assert max(sharp.values("entropy")) < 0.01
    assert majority_lost(sharp) == (0, 0, None)
    flat = Sharpness(multiples=(1, 5), sequences=16).measure(Subject(plant(RECALL, "a", sharpness=0.0), RECALL, 10))
    for row in flat.records():
        tokens = RECALL.token_count(row["length"])
        assert row["entropy"] == pytest.approx(torch.tensor(float(tokens)).log().item(), rel=1e-5)
        assert row["right"] == pytest.approx(2 / tokens, rel=1e-5)  # the item has a key and a value


def test_the_length_at_which_a_head_loses_its_majority_is_the_one_that_softmax_gives():
    """A score that is larger by s outweighs exp(s) tokens: here about those of 25 items, and not those of 35."""
    model = plant(RECALL, "a", sharpness=1.0)
    batch = RECALL.batch(0, "test", 0, length=20, size=32)
    body = model.blocks[0][0].body
    with torch.inference_mode():
        q, k, _ = body.projected(model.blocks[0][0].norm(model.embedding(batch.tokens)))
        scores = (q @ k.mT)[:, 0, -1] / q.shape[-1] ** 0.5
    _, places = find_source(RECALL, batch)
    gap = (scores.gather(1, places[:, None])[:, 0] - scores[:, 0]).mean().item()
    wanted = torch.tensor(30.0 * 2).log().item()  # 25 items are 52 tokens, and 35 are 72
    model = plant(RECALL, "a", sharpness=wanted / gap)
    table = Sharpness(multiples=(0.4, 1, 1.4, 2), sequences=32).measure(Subject(model, RECALL, 25))
    assert majority_lost(table) == (0, 0, 35)
    for length, weight in best_head_weights(table, 0, 0):
        tokens = RECALL.token_count(length)
        assert weight == pytest.approx(exp(wanted) / (exp(wanted) + tokens - 1), abs=0.03)


# Ablation


def ablated(model, task, length: int, **settings):
    probe = Ablation(multiples=(1, 3), sequences=32, **settings)
    table = probe.measure(Subject(model, task, length))
    return {(row["change"], row["answer"], row["length"] // length): row["accuracy"] for row in table.records()}


def test_recurrence_carries_the_sum_and_attention_recall_where_they_are_planted_so():
    found = ablated(plant(BOTH, "ra"), BOTH, 12)
    for multiple in (1, 3):
        assert found[INTACT, "sum", multiple] == found[INTACT, "recall", multiple] == 1.0
        for change in (ATTENTION_OFF, "values of another sequence"):
            assert found[change, "sum", multiple] == 1.0
        for change in (ATTENTION_OFF, "scores uniform", "values of another sequence", "scores shuffled"):
            assert found[change, "recall", multiple] < 0.7  # guessing one of four values
        assert found["state reset", "recall", multiple] == 1.0
        for change in ("state reset", "state frozen", "state exchanged"):
            assert found[change, "sum", multiple] < 0.7  # guessing one of three sums
        assert found["largest weight instead of softmax", "recall", multiple] == 1.0
    assert found["scores cut to the training length", "recall", 1] == 1.0
    assert found["scores cut to the training length", "recall", 3] < 0.7
    assert found["temperature 0.5", "recall", 3] == 1.0


def test_a_recurrence_that_is_not_there_carries_nothing():
    """The opposite: with the recurrence's weights at zero, no change of its state matters, and the sum is guessed."""
    model = plant(BOTH, "ra")
    torch.nn.init.zeros_(model.blocks[0][0].body.cell.bias_ih_l0)
    found = ablated(model, BOTH, 12)
    for change in (INTACT, "state reset", "state frozen", "state exchanged", ATTENTION_OFF):
        assert found[change, "sum", 1] == found[INTACT, "sum", 1] < 0.7
    assert found[INTACT, "recall", 3] == 1.0


def test_a_head_that_counts_up_to_a_length_carries_the_sum_up_to_there():
    shortcut = ablated(CountingModel(SUM, most=SUM.token_count(25)), SUM, 25)
    assert shortcut[INTACT, "sum", 1] == shortcut["scores uniform", "sum", 1] == 1.0  # its weights are equal
    assert shortcut[ATTENTION_OFF, "sum", 1] < 0.7  # guessing one of three sums
    assert shortcut["values of another sequence", "sum", 1] < 0.7
    assert shortcut[INTACT, "sum", 3] < 0.7
    without_end = ablated(CountingModel(SUM, most=1000), SUM, 25)
    assert without_end[INTACT, "sum", 3] == 1.0
    assert without_end[ATTENTION_OFF, "sum", 3] < 0.7


def verdicts_on(probe, models, task) -> list[str]:
    """Return the verdicts on models as if they were jointly trained with different seeds."""
    tables = (probe.measure(Subject(model, task, 25, seed=seed)) for seed, model in enumerate(models))
    runs = [
        Probed("s", task.name, "joint", "joint", seed, 25, str(seed), "", table) for seed, table in enumerate(tables)
    ]
    return [verdict.word for verdict in verdicts({probe.name: runs}, task.state_answer)]


def test_verdicts_follow_from_what_was_planted():
    """From models to words: a shortcut and a head that is diluted are confirmed, and their opposites refuted."""
    counting, tracking = [CountingModel(SUM, most=26)] * 2, [plant(BOTH, "ra")] * 2
    ablation = Ablation(multiples=(1,), sequences=32, heads=False)
    assert verdicts_on(ablation, counting, SUM) == ["confirmed", "undecided", "undecided"]
    assert verdicts_on(ablation, tracking, BOTH) == ["refuted", "undecided", "undecided"]
    weights = Sharpness(multiples=(0.2, 2), sequences=16)
    assert verdicts_on(weights, [plant(RECALL, "a", sharpness=0.5)] * 2, RECALL)[2] == "confirmed"
    assert verdicts_on(weights, [plant(RECALL, "a")] * 2, RECALL)[2] == "refuted"


def test_the_changes_leave_the_model_as_it_was():
    model = SequenceModel(hybrid(width=8, blocks=2, heads=2), BOTH.vocabulary_size).eval()
    tokens = BOTH.batch(0, "test", 0, length=9, size=4).tokens
    before, weights = model(tokens), {name: value.clone() for name, value in model.state_dict().items()}
    subject = Subject(model, BOTH, 6)
    for probe in (Ablation(multiples=(1,), sequences=4), Sharpness(multiples=(1,)), HeadPositions(multiples=(1,))):
        probe.measure(subject)
    State(multiples=(1, 2), sequences=8).measure(subject)
    assert torch.equal(model(tokens), before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


# State


def test_the_state_of_an_exact_recurrence_is_read_at_every_length_and_does_not_move():
    table = State(multiples=(1, 8), sequences=32).measure(Subject(plant(SUM, "r"), SUM, 12))
    for row in table.records(feature="state", control="none"):
        assert row["accuracy"] == 1.0
        assert row["drift"] < 0.2  # the classes are the same; what is drawn in them differs a little
    assert max(table.values("accuracy", control="shuffled labels", length=96)) < 0.6
    assert max(table.values("accuracy", control="random weights", length=96)) < 0.6


def test_a_recurrence_that_only_adds_up_drifts_with_length_and_is_not_read_beyond_training():
    table = State(multiples=(1, 8), sequences=32).measure(Subject(plant(SUM, "r", mod=False), SUM, 12))
    short, long = (table.records(feature="state", control="none", length=n)[0] for n in (12, 96))
    assert long["drift"] > 5 * short["drift"]
    assert long["accuracy"] < 0.6


def test_a_task_without_state_and_a_model_without_recurrence_are_named():
    with pytest.raises(NotMeasurable, match="recall has no state to track"):
        State().measure(Subject(plant(RECALL, "a"), RECALL, 9))
    with pytest.raises(NotMeasurable, match="no recurrence"):
        State().measure(Subject(SequenceModel(transformer(width=8, heads=2), 4), SUM, 9))
    with pytest.raises(NotMeasurable, match="no attention"):
        Sharpness().measure(Subject(SequenceModel(lstm(width=8), 4), SUM, 9))


# Positions


def head(table, measure: str) -> float:
    (found,) = table.values("value", layer=0, head=0, measure=measure)
    return found


def test_a_head_that_attends_by_distance_is_told_from_one_that_looks_keys_up():
    settings = Model(layout="a", width=8, blocks=1, attention=Attention(heads=1, positions=Alibi()))
    by_distance: Any = SequenceModel(settings, RECALL.vocabulary_size).eval()
    torch.nn.init.zeros_(by_distance.blocks[0][0].body.queries_keys_values.weight)
    by_distance.blocks[0][0].body.positions.slopes.fill_(2.0)
    probe = HeadPositions(multiples=(1,), sequences=32)
    table = probe.measure(Subject(by_distance, RECALL, 20))
    assert head(table, "distance") > 0.9  # the first queries have fewer tokens to share their weight among
    assert head(table, "place") == pytest.approx(1.0)
    assert head(table, "content") == pytest.approx(0.0, abs=1e-6)
    assert head(table, "mean distance") == pytest.approx(1 / (exp(2.0) - 1), rel=0.05)
    looks_up = probe.measure(Subject(plant(RECALL, "a"), RECALL, 20))
    assert head(looks_up, "distance") < 0.2
    # Without positions, scores depend on the two tokens alone, which differ from sequence to sequence.
    torch.manual_seed(0)
    by_content: Any = SequenceModel(Model(layout="a", width=8, blocks=1, attention=Attention(heads=1)), 99).eval()
    torch.nn.init.normal_(by_content.blocks[0][0].body.queries_keys_values.weight)
    table = probe.measure(Subject(by_content, RECALL, 20))
    assert head(table, "distance") < 0.2
    assert head(table, "content") > 0.5


def test_equal_weights_have_no_pattern():
    table = HeadPositions(multiples=(1,)).measure(Subject(plant(RECALL, "a", sharpness=0.0), RECALL, 10))
    assert head(table, "distance") is None


def test_shifted_positions_do_not_matter_to_rotary_and_do_to_a_learned_table():
    torch.manual_seed(0)
    accuracies = {}
    for positions in ("rotary", "learned", "none", "alibi"):
        model: Any = SequenceModel(
            transformer(width=16, blocks=1, heads=2, positions=positions), RECALL.vocabulary_size
        )
        if positions == "learned":
            torch.nn.init.normal_(model.blocks[0][0].body.positions.table, std=30.0)
        subject = Subject(model.eval(), RECALL, 10)
        plain = Stack([subject]).accuracy(10, 64)[0]["recall"]
        table = HeadPositions(multiples=(1,), sequences=64).measure(subject)
        accuracies[positions] = (
            plain,
            dict(zip(table.values("measure", layer=-1), table.values("value", layer=-1), strict=True)),
        )
    plain, moved = accuracies["rotary"]
    assert moved["recall, positions shifted"] == plain
    assert accuracies["learned"][1].keys() == moved.keys()
    assert accuracies["none"][1] == accuracies["alibi"][1] == {}


@pytest.mark.parametrize("task", [ModularSum(modulus=3), CoupledKey()])
def test_places_of_the_planted_features_do_not_overlap(task):
    at = Places(task)
    assert (
        len({*at.keys, *at.values, at.digit_flag, at.marker_flag, at.sink, at.one}) == len(at.keys) + len(at.values) + 4
    )
