"""How the choices of an arm are ranked, which go on, and how their range is extended."""

import json
from dataclasses import replace
from math import log2

import pytest
import torch
from compare_tuning import train_in_turn

from latebloom.engine.files import make_folder, write_json
from latebloom.engine.folder import RunFolder
from latebloom.errors import CheckpointError, ConfigError, InterruptedRun
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import Evaluation
from latebloom.report.study import read_sections
from latebloom.report.tables import as_markdown
from latebloom.results.file import read_results
from latebloom.studies.claim import check_claim, claimed
from latebloom.studies.execute import execute
from latebloom.studies.plan import Axis, Plan
from latebloom.studies.ranking import Trial, rank_choices, score_choices


def evaluation(sequences: int = 10, lengths: tuple[int, ...] = (10, 20), **right: tuple[int, ...]) -> Evaluation:
    """Return the counts of named answers at some lengths; the training length is 5, and guessing is right in 10%."""
    counts = [
        Count(n, sequences, min(each), dict(zip(right, each, strict=True)))
        for n, each in zip(lengths, zip(*right.values(), strict=True), strict=True)
    ]
    return Evaluation.of(5, tuple(counts), dict.fromkeys(right, 0.1))


def ranked(*sums: tuple[int, int, int], share: float = 0.5) -> tuple[tuple[int, ...], str]:
    """Return the order and the reason for it of choices with so many of 100 right at the lengths 5, 10 and 20."""
    choices = {k: [Trial(evaluation(100, (5, 10, 20), sum=each))] for k, each in enumerate(sums)}
    ranking = rank_choices(dict(choices), share, seeds=1)
    return ranking.order, ranking.by


def test_before_the_end_what_is_at_chance_is_ranked_by_accuracy_at_the_training_length():
    assert ranked((10, 14, 13), (12, 10, 10), (9, 9, 16)) == ((1, 0, 2), "nothing")
    assert ranked((10, 14, 13), (50, 10, 10), (30, 9, 9)) == ((1, 2, 0), "training length")
    assert ranked((50, 10, 10), (40, 30, 30), (30, 40, 40)) == ((2, 1, 0), "beyond")
    assert ranked((50, 40, 40), (60, 40, 40)) == ((1, 0), "beyond")  # a tie
    assert ranked((90, 10, 10), (9, 9, 16), share=1.0) == ((1, 0), "beyond")  # at the end, only the score counts


def test_a_choice_is_above_chance_if_all_of_its_ranked_answers_are():
    only_recall = Trial(evaluation(100, (5, 10), sum=(12, 9), recall=(90, 90)))
    both = Trial(evaluation(100, (5, 10), sum=(40, 35), recall=(20, 30)))
    assert rank_choices({0: [only_recall]}, 0.5, 1).by == "nothing"
    assert rank_choices({0: [only_recall], 1: [both]}, 0.5, 1).order == (1, 0)
    state = Trial(evaluation(100, (5, 10), sum=(40, 35), recall=(9, 9)), ("recall",))  # recall is not trained yet
    assert rank_choices({0: [state]}, 0.5, 1).by == "beyond"
    assert rank_choices({0: [replace(state, withheld=())]}, 0.5, 1).by == "nothing"


def test_more_sequences_and_seeds_tell_learning_from_chance():
    def by(right: int, sequences: int, seeds: int = 1, choices: int = 1) -> str:
        one = [Trial(evaluation(sequences, (10,), sum=(right,)))] * seeds
        return rank_choices(dict.fromkeys(range(choices), one), 0.5, seeds).by

    assert by(15, 100) == "nothing"
    assert by(150, 1_000) == by(15, 100, seeds=10) == "beyond"
    assert by(19, 100) == "beyond"
    assert by(19, 100, choices=16) == "nothing"  # the best of many is often lucky


def test_guessing_hardly_ever_counts_as_learning():
    generator = torch.Generator().manual_seed(0)
    rounds, choices = 150, 16
    drawn = torch.bernoulli(torch.full((rounds, choices, 3, 200), 0.1), generator=generator).sum(-1).int().tolist()
    seen = [
        rank_choices({k: [Trial(evaluation(200, (5, 10, 20), sum=each))] for k, each in enumerate(one)}, 0.5, 1).by
        for one in drawn
    ]
    assert seen.count("nothing") >= 0.98 * rounds


def test_choices_are_ranked_by_the_answers_that_all_of_them_are_trained_on():
    held, switched = evaluation(sum=(9, 7), recall=(1, 0)), evaluation(sum=(6, 6), recall=(6, 6))
    late = Trial(held, ("recall",))
    assert score_choices({0: [late], 1: [Trial(switched)]}) == (
        {0: pytest.approx(0.8), 1: pytest.approx(0.6)},
        ("sum",),
    )
    assert score_choices({0: [Trial(held)], 1: [Trial(switched)]}) == (
        {0: pytest.approx(0.05), 1: pytest.approx(0.6)},
        (),
    )
    assert score_choices({0: None, 1: [Trial(switched)] * 2}) == ({0: None, 1: pytest.approx(0.6)}, ())
    other = Trial(held, ("sum",))  # nothing in common: each by what it is trained on
    assert score_choices({0: [late], 1: [other]})[0] == {0: pytest.approx(0.8), 1: pytest.approx(0.05)}


@pytest.fixture
def instead_of_training(monkeypatch):
    """Execute a plan without training: every run has the accuracy that a function returns for (arm, config, step)."""

    def execute_with(accuracy, plan, folder, announce=lambda stage: None, runner=lambda *words: {}):
        def tested(tuning, k, stop):
            config = tuning.choices[k]
            share = accuracy(tuning.arm.name, config, stop.step if stop else config.training.steps)
            if share is None:  # a run of it failed
                return None
            right = round(200 * share)
            return [Trial(evaluation(200, (5, 10), sum=(right, right)))] * len(tuning.seeds)

        monkeypatch.setattr("latebloom.studies.rounds.Tuning._tested", tested)
        execute("mine", plan, folder, runner, announce)
        return json.loads((folder / "choices.json").read_text())

    return execute_with


def test_a_round_that_ends_at_chance_drops_nothing(plan, tmp_path, instead_of_training):
    """At steps 6 and 9 all choices guess, so every one is trained to the end."""
    stages = []

    def accuracy(arm, config, step):
        return 0.1 if step < 12 else config.training.delayed.learning_rate

    (told,) = instead_of_training(accuracy, plan, tmp_path, stages.append)
    (told,) = json.loads((tmp_path / "choices.json").read_text())
    assert [choice["steps"] for choice in told["choices"]] == [12] * 4
    for choice in told["choices"]:
        assert [one["ranked_by"] for one in choice["rounds"]] == ["nothing", "nothing", "beyond"]
    note = "no setting of dat on composite is clearly above chance yet, so all of them go on"
    assert [stage.note for stage in stages] == ["", note, note, ""]
    # What is left counts the choices that went on: two and two in the plan; four and two; four.
    assert [(len(stage.later), stage.going_on) for stage in stages] == [(3, 12), (3, 6), (1, 0), (0, 0)]
    assert plan.most_tuning_steps == 2 * 4 * 12
    assert told["chosen"] == 3


def test_the_best_early_learners_go_on_where_a_later_round_is_above_chance(plan, tmp_path, instead_of_training):
    def accuracy(arm, config, step):
        return 0.1 if step < 9 else 20 * config.training.delayed.learning_rate

    (told,) = instead_of_training(accuracy, plan, tmp_path)
    assert [choice["steps"] for choice in told["choices"]] == [9, 9, 12, 12]


RATES_OF = ("training.delayed.learning_rate", "training.full.learning_rate")


def with_axes(plan: Plan) -> Plan:
    """Two arms in one group and one in another, each with the same four rates, and two more on either side."""
    (arm,) = plan.arms
    choices = tuple(with_rate(arm.config, rate) for rate in (1e-3, 2e-3, 4e-3, 8e-3))
    axis = Axis(fields=RATES_OF, below=(5e-4, 2.5e-4), above=(1.6e-2, 3.2e-2))
    arms = [replace(arm, name=name, choices=choices, axis=axis, group=group) for name, group in ARMS.items()]
    return replace(plan, arms=arms)


def with_rate(config, rate):
    phases = {name: replace(getattr(config.training, name), learning_rate=rate) for name in ("delayed", "full")}
    return replace(config, training=replace(config.training, **phases))


ARMS = {"one": "a", "two": "a", "three": "b"}


def near(best: dict[str, float]):
    """Return an accuracy that is the higher the nearer a rate is to the best one of its arm."""
    return lambda arm, config, step: 1 / (1 + 0.1 * abs(log2(config.training.full.learning_rate / best[arm])))


@pytest.mark.parametrize(
    ("best", "tried", "still"),
    [
        ({"one": 2e-3, "two": 4e-3, "three": 2e-3}, {"a": [], "b": []}, []),
        ({"one": 8e-3, "two": 4e-3, "three": 2e-3}, {"a": [1.6e-2], "b": []}, []),  # for every arm of the group
        ({"one": 1.6e-2, "two": 4e-3, "three": 1e-3}, {"a": [1.6e-2, 3.2e-2], "b": [5e-4]}, []),
        ({"one": 1e-3, "two": 8e-3, "three": 2e-3}, {"a": [5e-4, 1.6e-2], "b": []}, []),  # one at either end
        ({"one": 1.0, "two": 4e-3, "three": 2e-3}, {"a": [1.6e-2, 3.2e-2], "b": []}, ["one"]),  # used up
    ],
)
def test_a_range_is_extended_for_all_arms_of_a_group_where_the_best_is_at_its_end(
    plan, tmp_path, instead_of_training, best, tried, still
):
    plan, stages, trained = with_axes(plan), [], []
    told = instead_of_training(
        near(best), plan, tmp_path, stages.append, lambda configs, *words: trained.append(configs) or {}
    )
    for entry in told:
        added = [one for one in entry["choices"] if one.get("extends_the_range")]
        wanted = tried[ARMS[entry["arm"]]]
        assert [one["changes"][RATES_OF[1]] for one in added] == wanted
        assert all(one["changes"][RATES_OF[0]] == one["changes"][RATES_OF[1]] for one in added)
        assert {one["seeds"] for one in added} <= {2}  # on all tuning seeds, to the end
        assert {one["steps"] for one in added} <= {12}
        chosen = entry["choices"][entry["chosen"]]["changes"][RATES_OF[1]]
        rates = [1e-3, 2e-3, 4e-3, 8e-3, *wanted]
        assert chosen == min(rates, key=lambda rate: abs(log2(rate / best[entry["arm"]])))
    extended = [stage for stage in stages if "beyond the range" in stage.purpose]
    assert bool(extended) == any(tried.values())
    assert all(stage.later == plan.reported_steps for stage in extended)
    assert [name for name in ARMS if name in stages[-1].note] == still
    assert ("the plan has no further values" in stages[-1].note) == bool(still)
    again = []
    instead_of_training(near(best), plan, tmp_path, runner=lambda configs, *words: again.append(configs) or {})
    assert again == trained  # a study that is given again takes the same way


def with_decay(config, decay):
    return replace(config, training=replace(config.training, weight_decay=decay))


@pytest.mark.parametrize(
    ("good", "failed", "tried", "chosen"),
    [
        ({(8e-3, 0.0): 0.8, (8e-3, 0.1): 0.9}, (8e-3, 0.1), [(1.6e-2, 0.0)], (8e-3, 0.0)),
        ({(1e-3, 0.0): 0.9, (8e-3, 0.0): 0.8}, (1e-3, 0.0), [(1.6e-2, 0.0), (5e-4, 0.0)], (8e-3, 0.0)),
        (
            {(4e-3, 0.0): 0.9, (8e-3, 0.0): 0.7, (1.6e-2, 0.0): 0.8},
            (4e-3, 0.0), [(1.6e-2, 0.0), (3.2e-2, 0.0)], (1.6e-2, 0.0),
        ),
        ({(8e-3, 0.0): 0.8, (1.6e-2, 0.0): 0.9}, (1.6e-2, 0.0), [(1.6e-2, 0.0), (3.2e-2, 0.0)], (8e-3, 0.0)),
    ],
    ids=["another base", "another end", "no end", "beyond the range"],
)  # fmt: skip
def test_a_range_stays_extended_when_a_failed_run_is_repeated(
    plan, tmp_path, instead_of_training, good, failed, tried, chosen
):
    """With the run that failed at first, another choice is best; the reported runs have begun without it."""
    plan = with_axes(plan)
    (arm, *_) = plan.arms
    plan = replace(plan, arms=[replace(arm, choices=tuple(with_decay(c, d) for d in (0.0, 0.1) for c in arm.choices))])

    def accuracy(arm, config, step):
        return good.get(settings(config), 0.3)

    def settings(config):
        return config.training.full.learning_rate, config.training.weight_decay

    def first(arm, config, step):
        return None if settings(config) == failed else accuracy(arm, config, step)

    def begin(configs, folder, *stops):
        for name, config in configs.items():
            RunFolder(folder / name).require_same_settings(config)
            make_folder(folder / name)
            write_json(folder / name / "config.json", config.to_json())
        return {}

    (before,) = instead_of_training(first, plan, tmp_path, runner=begin)
    (told,) = instead_of_training(accuracy, plan, tmp_path, runner=begin)
    assert instead_of_training(accuracy, plan, tmp_path, runner=begin) == [told]
    assert [one["changes"] for one in told["choices"]][: len(before["choices"])] == [
        one["changes"] for one in before["choices"]
    ]
    assert None not in [one["accuracy_beyond"] for one in told["choices"]]
    folders = [tmp_path / f"tuning/a/one/choice-{k}/seed-10" for k in range(8, len(told["choices"]))]
    assert [settings(RunFolder(folder).read_config()) for folder in folders] == tried
    assert settings(RunFolder(tmp_path / "a/one/seed-0").read_config()) == chosen


def test_the_axis_of_an_arm_continues_the_range_of_its_choices(plan, tmp_path):
    plan = with_axes(plan)
    arm = plan.arms[0]
    for axis, said in (
        (Axis(fields=("training.full.rate",), above=(1.0,)), "training.full.rate is not a number in every choice"),
        (Axis(fields=("training.restart",), above=(1.0,)), "training.restart is not a number in every choice"),
        (Axis(fields=RATES_OF, above=(4e-3,)), "arm one: axis: above: .* must be values above 0.008"),
        (Axis(fields=RATES_OF, below=(1e-4, 5e-4)), "arm one: axis: below: .* must be values below 0.001"),
        (Axis(fields=()), "it needs fields, and choices"),
    ):
        with pytest.raises(ConfigError, match=said):
            replace(plan, arms=[replace(arm, axis=axis)])
    with claimed(tmp_path, "mine", plan):
        pass
    check_claim(tmp_path, "mine", plan)
    with pytest.raises(CheckpointError, match="arm one on a has other settings or choices"):
        check_claim(tmp_path, "mine", replace(plan, arms=[replace(arm, axis=None), *plan.arms[1:]]))
    # Two values on either side, on two seeds, beside the rounds.
    assert plan.most_tuning_steps == 3 * 2 * 12 * (4 + 4)


def test_an_extended_range_is_trained_and_continued_like_everything_else(plan, tmp_path):
    """With two choices the best is at an end, whatever it is."""
    (arm,) = plan.arms
    axis = Axis(fields=RATES_OF, below=(1e-3,), above=(3e-2,))
    arm = replace(arm, choices=tuple(with_rate(arm.config, rate) for rate in (3e-3, 1e-2)), axis=axis)
    plan = Plan([arm], seeds=(0,), tuning_seeds=(9,))
    count = [0]

    def cut(configs, folder, stops=None):
        for name, config in configs.items():
            count[0] += 1
            if count[0] == 3:  # the first run beyond the range
                raise InterruptedRun("stopped by the test")
            train_in_turn({name: config}, folder)
        return {}

    with pytest.raises(InterruptedRun):
        execute("mine", plan, tmp_path, cut)
    execute("mine", plan, tmp_path, train_in_turn)
    (told,) = json.loads((tmp_path / "choices.json").read_text())
    assert len(told["choices"]) > 2
    scores = [one["accuracy_beyond"] for one in told["choices"]]
    assert scores[told["chosen"]] == max(scores)
    records = read_results([tmp_path / "tuning.parquet"])
    assert [one.evaluation.mean_beyond for one in records if one.evaluation] == pytest.approx(scores)
    (reported,) = read_results([tmp_path / "results.parquet"])
    configs = [json.loads(one.config) for one in (reported, records[told["chosen"]])]
    assert configs[0]["training"] == configs[1]["training"]
    (section,) = read_sections([tmp_path])
    assert f"{len(scores)} settings" in as_markdown(section.tables["choices"])
