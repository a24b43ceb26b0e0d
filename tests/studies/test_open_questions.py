"""The studies of the open questions: plans that are fair, state what they expect, and fit their budgets."""

from dataclasses import replace

import pytest

from latebloom.errors import ConfigError
from latebloom.estimate import switch_step
from latebloom.models.match import count_parameters
from latebloom.report.statistics import SETTLED_AT, smallest_corrected
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
    assert min(plan.tuning[0].seeds) == 1_000
    assert [one.share < 1 for one in plan.tuning] == [True] * (len(plan.tuning) - 1) + [False]
    assert len({len(arm.choices) for arm in plan.arms}) == 1  # as many settings for every arm
    assert plan.hypotheses
    assert any(arm.control for arm in plan.arms) or name == "far"
    for task in {arm.task for arm in plan.arms}:
        arms = [arm for arm in plan.arms if arm.task == task]
        steps = {arm.config.training.steps for arm in arms if "equal time" not in arm.name}
        assert len(steps) == 1
        alone = [arm for arm in arms if ": alone" in arm.name]
        for group in (alone, [arm for arm in arms if arm not in alone]):
            counts = {count_parameters(c.model, c.task.vocabulary_size) for arm in group for c in arm.choices}
            assert not counts or max(counts) <= 1.35 * min(counts), f"{task}: {sorted(counts)}"
    if scale == "paper":
        held_out = sum(len(one.seeds) for one in plan.tuning)
        assert held_out >= 2  # the spread over them tells how many seeds are needed
        # The learning rates of every arm can be extended, as often on either side, and once for all fits the budget.
        assert {(len(arm.axis.below), len(arm.axis.above)) if arm.axis else None for arm in plan.arms} == {(2, 2)}
        extended = sum(arm.cost * held_out * arm.config.training.steps for arm in plan.arms) / plan.speed / 60
        assert plan.gpu_minutes + extended <= MINUTES[name]
        # A round ends well after the switch while there is still a choice.
        last = plan.tuning[-2].share
        switches = [switch_step(arm.config) / arm.config.training.steps for arm in plan.arms]
        assert last > max(switches)
        assert plan.tuning[-2].kept(4) > 1
        assert describe_cost(plan).startswith(f"about {plan.gpu_minutes:.0f} GPU minutes for ")
        assert f"; at most {plan.most_gpu_minutes:.0f} if no round" in describe_cost(plan)
        assert len(plan.arms[0].choices) >= 4


def test_recurrences_are_compared_without_and_with_state_noise():
    plan = plan_of(find_study("recurrences"), "paper")
    arms = {(arm.task, arm.name): arm for arm in plan.arms}
    assert len(arms) == 3 * 7 * 3 * 2
    for (task, name), arm in arms.items():
        noise = " (noise)" if name.endswith(" (noise)") else ""
        assert {choice.training.state_noise for choice in arm.choices} == {0.2 if noise else 0.0}
        recurrence, _, way = name.removesuffix(" (noise)").rpartition(": ")
        wanted = {f"{recurrence}: joint{noise}"} if way == "dat" else set()
        wanted |= {f"{recurrence}: {way}"} if noise and way != "alone" else set()
        assert set(arm.others) == wanted
        assert all((task, other) in arms for other in wanted)
    assert min(smallest_corrected(plan.shared_seeds)) < SETTLED_AT  # so many comparisons can be significant


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
