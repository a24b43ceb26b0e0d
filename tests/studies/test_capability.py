"""The study of what each recurrence can do alone: its cost, its predictions, and the page that compares both."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import synthetic

from latebloom.config import config_from
from latebloom.engine.stacks import stack_key
from latebloom.layers.recurrence import Recurrence
from latebloom.results.file import read_results, write_results
from latebloom.studies.capability import MULTIPLES, PREDICTED, SIZES, TASKS
from latebloom.studies.capability_longer import CHOSEN, LONGER
from latebloom.studies.find import find_study, plan_of
from latebloom.study import read_plan

DOCS = Path(__file__).parents[2] / "docs"


def test_every_recurrence_has_as_many_choices_and_a_prediction():
    plan = plan_of(find_study("capability"), "paper")
    assert {len(set(arm.choices)) for arm in plan.arms} == {6}
    assert {arm.name for arm in plan.arms} == PREDICTED.keys()
    assert {name.partition(",")[0] for name in PREDICTED} == set(Recurrence.members)
    assert {task for names in PREDICTED.values() for task in names} <= TASKS.keys() == {arm.task for arm in plan.arms}
    assert min(plan.seeds) >= 5_000
    assert len(plan.seeds) == 10
    assert all(arm.config.test_lengths == [25 * multiple for multiple in MULTIPLES] for arm in plan.arms)


def test_the_scale_for_two_cores_has_two_of_the_tasks_and_the_same_choices():
    plan = plan_of(find_study("capability"), "small")
    paper = {(arm.task, arm.name): arm for arm in plan_of(find_study("capability"), "paper").arms}
    assert {arm.task for arm in plan.arms} == {"sum mod 2", "S3"}
    for arm in plan.arms:
        other = paper[arm.task, arm.name]
        assert (arm.config.task, arm.config.model) == (other.config.task, other.config.model)
        assert {one.training.full.learning_rate for one in arm.choices} == {
            one.training.full.learning_rate for one in other.choices
        }
        assert len(set(arm.choices)) == 6
    assert min(plan.seeds) == 5_000


def test_another_number_of_seeds_begins_with_the_same_seed():
    assert list(read_plan("capability", "paper", 3)[1].seeds) == [5_000, 5_001, 5_002]
    assert list(read_plan("timing", "paper", 2)[1].seeds) == [0, 1]


def test_it_costs_what_its_docstring_says():
    plan = plan_of(find_study("capability"), "paper")
    tuning = [replace(one, seed=seed) for arm in plan.arms for one in arm.choices for seed in plan.tuning_seeds]
    stacks = {stack_key(config).hash: config.training.steps for config in tuning}
    assert len(stacks) + len(plan.arms) == 200
    assert sum(stacks.values()) + sum(arm.config.training.steps for arm in plan.arms) == 660_000
    assert sum(one.training.steps for one in tuning) + sum(plan.reported_steps) == 6_930_000


def test_the_longer_study_has_the_settings_that_were_chosen_in_the_cells_that_disagree(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    cells = import_module("component_tables").disagreements().split("; ")
    assert {f"{name} on {task}" for task, name in CHOSEN} == set(cells)
    chosen = {
        (run.task, run.arm): config_from(json.loads(run.config))
        for run in read_results([DOCS.parent / "results" / "capability.parquet"])
    }
    for arm in plan_of(find_study("capability_longer"), "paper").arms:
        before = chosen[arm.task, arm.name.partition(":")[0]]
        assert arm.config.training.steps == LONGER * before.training.steps
        assert arm.config.training.full.learning_rate == before.training.full.learning_rate
        if "one head" not in arm.name:
            assert arm.config.model.recurrence == before.model.recurrence
    assert SIZES["paper"].seeds == 10  # "a seed in ten"


@pytest.fixture
def tables(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS))
    component_tables, values = import_module("component_tables"), import_module("values")
    for module in (component_tables, values):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for read in (values.records, values.evaluations):
        read.cache_clear()
    (tmp_path / "results").mkdir()
    yield component_tables
    for name in ("component_tables", "performance_tables", "values"):
        sys.modules.pop(name, None)


def test_the_page_has_the_predictions_alone_until_there_are_results(tables):
    rows = {line.split(" | ")[0].strip("| "): line for line in tables.capability().splitlines()}
    assert rows["mamba3"] == "| mamba3 | yes | yes | yes | no | no |"
    assert rows["recurrence"] == f"| recurrence | {' | '.join(TASKS)} |"
    assert "has not been run" in tables.capability_state()


def test_the_page_shows_what_was_measured_and_where_it_disagrees(tables, tmp_path):
    surprises = {("lstm", "S3"), ("mamba2", "sum mod 2"), ("gru", "recall")}
    records = []
    for name, solved in PREDICTED.items():
        for task in TASKS:
            right = (task in solved) != ((name, task) in surprises)
            for seed in (5000, 5001):  # one seed that solves it is enough
                level = 0.95 if right and seed == 5001 else 0.45
                seen = synthetic.evaluation({25: 1.0, 100: level, 400: level})
                records.append(synthetic.record(name, seed, seen, study="capability", task=task))
    write_results(tmp_path / "results" / "capability.parquet", records)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in tables.capability().splitlines()}
    assert rows["lstm"][:3] == ["yes: 100 / 70 / 70 (1)", "yes: 100 / 70 / 70 (1)", "**yes: 100 / 45 / 45 (0)**"]
    assert rows["mamba2"][0] == "**no: 100 / 70 / 70 (1)**"
    assert set(tables.disagreements().split("; ")) == {f"{name} on {task}" for name, task in surprises}
