"""Checks of triggers, studies, recipes, trackers and probes."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from latebloom.checks.check import checks, require, skip
from latebloom.config import RunConfig, config_from
from latebloom.delay.triggers import Moment, Trigger
from latebloom.errors import ConfigError
from latebloom.probes.probe import Probe
from latebloom.recipes import Recipe
from latebloom.studies.plan import Study
from latebloom.trackers import Tracker

STEPS = 1000


def moment(step: int) -> Moment:
    """Return a moment at which nothing has been reached."""
    return Moment(step=step, steps=STEPS, measure=lambda multiple: 0.0, tokens=1, reports=(1.0 / step,))


@checks(Trigger)
def fires_at_its_latest_step(trigger: Trigger) -> None:
    """it fires at latest_step(steps) at the latest, with a reason in words, and not before the first step"""
    latest = trigger.latest_step(STEPS)
    require(isinstance(latest, int) and 1 <= latest <= STEPS, f"latest_step({STEPS}) is {latest!r}")
    memory: dict[str, object] = {}
    reasons = (trigger.decide(moment(step), memory) for step in range(1, latest + 1))
    reason = next((reason for reason in reasons if reason is not None), None)
    require(reason is not None, f"it has not fired by step {latest}")
    require(isinstance(reason, str) and bool(reason), f"decide returns {reason!r}")


@checks(Trigger)
def keeps_memory_that_can_be_saved(trigger: Trigger) -> None:
    """its memory is plain data, so that a run can be continued"""
    memory: dict[str, object] = {}
    for step in range(1, min(20, trigger.latest_step(STEPS))):
        trigger.decide(moment(step), memory)
    try:
        again = json.loads(json.dumps(memory))
    except TypeError as error:
        again = error
    require(again == memory, f"it is {memory!r}, which JSON cannot hold")


def _survives(config: RunConfig) -> bool:
    return config_from(json.loads(json.dumps(config.to_json()))) == config


@checks(Study)
def builds_at_every_scale(study: Study) -> None:
    """it has a plan at each of its scales, whose configurations survive JSON"""
    for scale in study.scales:
        for arm in study.build(scale).arms:
            require(
                _survives(arm.config),
                f"the configuration of arm {arm.name} changes when it is written as JSON and read back",
            )


@checks(Recipe)
def builds_a_configuration(recipe: Recipe) -> None:
    """it builds a configuration that survives JSON"""
    require(_survives(recipe.build()), "the configuration changes when it is written as JSON and read back")


@checks(Tracker)
def takes_metrics(tracker: Tracker) -> None:
    """it takes the metrics of a run"""
    try:
        tracker.check()
    except ConfigError as error:
        skip(str(error))
    with TemporaryDirectory() as folder:
        session = tracker.build(Path(folder), RunConfig(), 0)
        session.log({"train/loss": 0.5}, step=1)
        session.finish()


@checks(Probe)
def draws_its_columns(probe: Probe) -> None:
    """its charts draw columns of its table"""
    names = {column.name for column in probe.columns}
    for chart in (probe.chart, *probe.more):
        used = {chart.x, chart.value, *chart.y, *chart.where, *([chart.split] if chart.split else [])}
        missing = ", ".join(sorted(used - names))
        require(not missing, f"the chart {chart.title!r} draws {missing}; columns: {', '.join(sorted(names))}")
