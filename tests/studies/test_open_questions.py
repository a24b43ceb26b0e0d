"""The studies of the open questions: plans that are fair, state what they expect, and fit their budgets."""

from dataclasses import replace

import pytest

from latebloom.errors import ConfigError
from latebloom.models.match import count_parameters
from latebloom.results.stated import BestOf, Difference, Hypothesis
from latebloom.studies.claim import check_claim, claimed
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.plan import Arm, Plan, describe_cost

MINUTES = {"recurrences": 50, "sharpness": 25, "coupling": 40, "rivals": 40, "far": 25}
"""The GPU minutes that each may take at the scale of the paper."""


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize("name", MINUTES)
def test_a_plan_is_fair_and_says_what_it_expects(name, scale):
    plan = plan_of(find_study(name), scale)
    assert min(plan.seeds) == 5_000
    assert all(min(plan.seeds_of(arm)) == 5_000 for arm in plan.arms)
    assert min(plan.tuning_seeds) == 1_000
    assert len({len(arm.choices) for arm in plan.arms}) == 1  # as many settings for every arm
    assert plan.hypotheses
    assert any(arm.control for arm in plan.arms) or name == "far"
    for task in {arm.task for arm in plan.arms}:
        arms = [arm for arm in plan.arms if arm.task == task]
        steps = {arm.config.training.steps for arm in arms if "equal time" not in arm.name}
        assert len(steps) == 1
        alone = [arm for arm in arms if arm.name.endswith(": alone")]
        for group in (alone, [arm for arm in arms if arm not in alone]):
            counts = {count_parameters(c.model, c.task.vocabulary_size) for arm in group for c in arm.choices}
            assert not counts or max(counts) <= 1.35 * min(counts), f"{task}: {sorted(counts)}"
    if scale == "paper":
        assert plan.gpu_minutes <= MINUTES[name]
        assert describe_cost(plan).startswith(f"about {plan.gpu_minutes:.0f} GPU minutes for ")
        assert len(plan.arms[0].choices) >= 4


@pytest.fixture
def arms(tiny) -> list[Arm]:
    return [Arm("joint", replace(tiny, delay=None)), Arm("dat", tiny)]


def expecting(arm: str = "dat", at: float = 3) -> list[Hypothesis]:
    return [Hypothesis("a", "b", [Difference(task="composite", arm=arm, baseline="joint", at=at)])]


def test_hypotheses_name_arms_and_lengths_that_are_tested(arms):
    Plan(arms, range(2), hypotheses=expecting())
    with pytest.raises(ConfigError, match="'dta on composite' is not known; did you mean 'dat on composite'"):
        Plan(arms, range(2), hypotheses=expecting("dta"))
    with pytest.raises(ConfigError, match=r"dat on composite is not tested at 8x; add it to evaluation.multiples"):
        Plan(arms, range(2), hypotheses=expecting(at=8))


def test_a_selection_needs_the_measurement_that_it_selects_by(arms):
    with pytest.raises(ConfigError, match=r"arm joint: best_of: .* not measured at 2x; set training.watch=\[2\]"):
        Plan([replace(arms[0], best_of=BestOf())], range(3))
    watched = replace(arms[0].config, training=replace(arms[0].config.training, watch=(2,)))
    assert watched.watched_lengths == [5, 15, 10]
    selected = replace(arms[0], config=watched, best_of=BestOf())
    Plan([selected, arms[1]], range(3), hypotheses=expecting("joint (best of 3)"))


def test_hypotheses_cannot_be_changed_in_the_folder_of_a_study(arms, tmp_path):
    plan = Plan(arms, range(2), hypotheses=expecting())
    with claimed(tmp_path, "mine", plan):
        pass
    check_claim(tmp_path, "mine", replace(plan, seeds=range(4)))
    with pytest.raises(Exception, match="its hypotheses differ"):
        check_claim(tmp_path, "mine", replace(plan, hypotheses=expecting(at=2)))


def test_the_cost_counts_tuning_and_dearer_arms(arms):
    steps = arms[0].config.training.steps
    dear = replace(arms[1], cost=2.0, choices=(arms[1].config,) * 3)
    plan = Plan([arms[0], dear], range(5), tuning_seeds=(7, 8), second_round=(9,), finalists=2, speed=1.0)
    assert plan.gpu_minutes * 60 == steps * (5 + 2 * (5 + 3 * 2 + 2))
    assert describe_cost(replace(plan, speed=1e6)) == ""
