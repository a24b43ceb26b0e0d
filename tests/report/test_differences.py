"""What the arms of a study differ in, from their configurations alone."""

import json
import shlex
from dataclasses import replace

import pytest
from synthetic import evaluation, record

from latebloom.config import with_overrides
from latebloom.recipes import recipe
from latebloom.report.panel import panels
from latebloom.report.settings import differences_table

DELAY = {"until": {"name": "at_step", "step": 5}, "hold": "bypass"}
BASE = {"delay": None, "training": {"steps": 10, "weigh": "answers"}, "seed": 0}


def table_of(**configs):
    """The table for arms with these configurations."""
    seen = evaluation({25: 1.0, 75: 0.5})
    runs = [replace(record(arm, 0, seen), config=text) for arm, text in configs.items()]
    (panel,) = panels(runs)
    return differences_table(panel)


def rows_of(**configs):
    """Its rows as texts."""
    table = table_of(**configs)
    return None if table is None else {name.text: said.text for name, said in table.rows}


def changed(**training):
    return json.dumps(BASE | {"training": BASE["training"] | training})


def test_each_arm_has_what_is_set_differently_than_in_the_first_and_the_seed_is_no_difference():
    rows = rows_of(joint=changed(), longer=changed(steps=20), other=json.dumps(BASE | {"seed": 7}))
    assert rows == {"joint": "–", "longer": "training.steps=20", "other": "–"}


@pytest.mark.parametrize("delayed_first", [False, True])
def test_a_part_that_one_arm_has_and_another_has_not_is_a_difference(delayed_first):
    joint, dat = changed(), json.dumps(BASE | {"delay": DELAY})
    if delayed_first:
        assert rows_of(dat=dat, joint=joint) == {"dat": "–", "joint": "delay=null"}
    else:
        said = "delay.until.name=at_step delay.until.step=5 delay.hold=bypass delay.ramp_steps=0 'delay.withhold=[]'"
        assert rows_of(joint=joint, dat=dat) == {"joint": "–", "dat": said}


def test_it_says_which_phase_an_arm_without_a_delay_has():
    dat, later = (json.dumps(BASE | {"delay": DELAY | {"ramp_steps": steps}}) for steps in (1, 2))
    said = "An arm without a delay has one phase, training.full."
    tables = table_of(joint=changed(), dat=dat), table_of(dat=dat, later=later)
    assert [said in table.note for table in tables if table is not None] == [True, False]


def test_a_setting_that_an_arm_was_run_before_has_its_default():
    now = recipe("demo-dat").to_json()
    before = json.loads(json.dumps(now))
    del before["training"]["state_noise"]
    noisy = json.loads(json.dumps(now))
    noisy["training"]["state_noise"] = 0.2
    arms = {"old": before, "noisy": noisy, "noisier": noisy, "new": now}
    rows = rows_of(**{arm: json.dumps(config) for arm, config in arms.items()})
    said = "training.state_noise=0.2"
    assert rows == {"old": "–", "noisy": said, "noisier": said, "new": "–"}


def test_beside_a_configuration_that_this_version_cannot_read_all_stand_as_they_were_written():
    now, other = (json.loads(json.dumps(recipe("demo-dat").to_json())) for _ in range(2))
    other["training"]["stairs"] = 3
    other["training"]["steps"] = 7
    said = "training.steps=7 training.stairs=3"
    assert rows_of(now=json.dumps(now), other=json.dumps(other)) == {"now": "–", "other": said}


def test_without_two_configurations_that_differ_there_is_no_table():
    assert rows_of(joint=changed(), other=changed()) is None
    assert rows_of(joint=changed()) is None
    assert rows_of(joint=changed(), other="no JSON") is None


@pytest.mark.parametrize(
    ("first", "other"), [("demo-joint", "demo-dat"), ("demo-dat", "demo-joint"), ("paper-joint", "paper-dat")]
)
def test_what_is_said_can_be_pasted_into_a_shell(first, other):
    configs = {name: json.dumps(recipe(name).to_json()) for name in (first, other)}
    rows = rows_of(**configs)
    assert rows is not None
    assert with_overrides(recipe(first), shlex.split(rows[other])) == recipe(other)
