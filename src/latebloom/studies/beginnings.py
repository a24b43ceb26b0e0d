"""Shared beginnings of the runs of a study: what is identical is trained once, and forked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from latebloom.config import OtherRun, RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.pause import Stop, step_reached
from latebloom.engine.shared import COMPARED, WITHOUT_EFFECT, first_step, fork, shared_steps
from latebloom.studies.plan import Plan
from latebloom.studies.rounds import planned_stages
from latebloom.studies.stacks import NO_STOPS, Configs, Stops, interrupted_stacks

WORTH = 0.05
"""The smallest share of a run that is shared: a pause costs a checkpoint and a new start of the run."""
Train = Callable[[Configs, Path, Stops], dict[str, str]]
"""Trains runs to their end or their pause, and returns the reason for each that failed."""


@dataclass(frozen=True)
class Fork:
    """A run that begins from the checkpoint of another one."""

    source: str
    target: str
    step: int


def find_forks(configs: Mapping[str, RunConfig], stops: Stops = NO_STOPS) -> list[Fork]:
    """Return the forks that save the most steps, the earliest first; a source is there before it is forked."""
    known: dict[tuple[str, str], int] = {}

    @cache
    def settings(name: str) -> str:
        return replace(configs[name], seed=0).hash

    def shared(one: str, other: str) -> int:
        key = settings(one), settings(other)  # computed once for all seeds
        if key not in known:
            known[key] = shared_steps(configs[one], configs[other])
        return known[key]

    # Pairs are compared within a family only; a study may have thousands of settings.
    families: dict[tuple[object, ...], list[str]] = {}
    for name, config in configs.items():
        if isinstance(config, OtherRun):  # it cannot be forked
            continue
        families.setdefault((_family(config), first_step(config)), []).append(name)
    forks: dict[str, Fork] = {}
    for family in families.values():
        goals = {name: _goal(name, configs, stops) for name in family}
        for number, target in enumerate(family):
            steps = {one: min(shared(one, target), goals[one], goals[target]) for one in family[:number]}
            source = max(steps, key=lambda one: steps[one], default=target)
            step = steps.get(source, 0)
            while source in forks and forks[source].step >= step:  # identical with its own source up to there
                source = forks[source].source
            if step >= max(1, WORTH * goals[target]):
                forks[target] = Fork(source, target, step)
    return sorted(forks.values(), key=lambda one: one.step)


def saved_by_sharing(plan: Plan) -> int:
    """Return the seed-steps that a plan saves because runs share their beginnings, if no choice fails."""
    return sum(one.step for stage in planned_stages(plan) for one in find_forks(*stage))


def _family(config: RunConfig) -> str:
    """Return the settings, the seed among them, without which two runs share nothing."""
    data = config.to_json()
    for name in (*COMPARED, *WITHOUT_EFFECT):
        *sections, last = name.split(".")
        inner = data
        for section in sections:
            inner = inner.get(section) or {}
        inner.pop(last, None)
    return json.dumps(data, sort_keys=True)


def _goal(name: str, configs: Mapping[str, RunConfig], stops: Stops) -> int:
    return stops[name].step if name in stops else configs[name].training.steps


def train_sharing(
    configs: Configs, folder: Path, stops: Stops, train: Train, device: str, *, in_step: bool = False
) -> dict[str, str]:
    """Train runs, and what several of them share only once; return the reason for each run that failed.

    With `in_step`, all runs pause where some are forked, not only those that are forked. Stacks need that: runs can
    join a stack only at the same step, and one large stack is faster than several small ones.
    """
    failures: dict[str, str] = {}
    forks = find_forks(configs, stops)
    for step in sorted({one.step for one in forks}):
        later = {one.target for one in forks if one.step >= step}
        going = {name for name in configs if name not in later and _goal(name, configs, stops) > step}
        due, behind = _due([one for one in forks if one.step == step], going if in_step else set(), folder)
        behind = {name: configs[name] for name in configs if name in behind and name not in failures}
        failures |= train(behind, folder, dict.fromkeys(behind, Stop(step, test=False))) if behind else {}
        for one in due:
            if RunFolder(folder / one.source).config_file.exists():
                fork(RunFolder(folder / one.source), RunFolder(folder / one.target), configs[one.target], step, device)
    left = {name: config for name, config in configs.items() if name not in failures}
    return failures | train(left, folder, stops)


def _due(forks: list[Fork], going: set[str], folder: Path) -> tuple[list[Fork], set[str]]:
    """Return those of the forks at one step that are left to do, and the runs to train up to it: their sources, and
    those of `going` that are not further."""
    stacks = list(interrupted_stacks(folder))
    in_stacks = {name for members, _ in stacks for name in members}
    due = [one for one in forks if one.target not in in_stacks and not _has_begun(RunFolder(folder / one.target))]
    if not due:
        return [], set()
    step = due[0].step
    places = {name: RunFolder(folder / name) for name in {*going, *(one.source for one in due)}}
    # A source that has gone on has no checkpoint there any more; then the target is trained from the beginning.
    behind = {name for name, place in places.items() if not place.is_finished and step_reached(place) <= step}
    for members, reached in stacks:
        if reached > step or not behind.issuperset(members):  # its runs go on together, later
            behind.difference_update(members)
    return [one for one in due if one.source in behind], behind


def _has_begun(folder: RunFolder) -> bool:
    return folder.is_finished or step_reached(folder) > 0
