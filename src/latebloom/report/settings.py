"""The settings of the arms: in which they differ, and how they were chosen on tuning seeds."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan
from statistics import mean
from typing import Any

from latebloom.report.panel import Panel
from latebloom.report.study_tables import percent
from latebloom.report.tables import EMPTY, Cell, Table, join_words
from latebloom.results.record import CHOICE, RunRecord
from latebloom.results.settings import settings_in_all

Settings = dict[str, str]
"""A configuration as `field: value`, with the names that overrides use."""


def differences_table(panel: Panel) -> Table | None:
    """Return the settings of each arm that differ from the first arm; None if no two configurations differ."""
    first_runs = {run.arm: run for run in reversed(panel.runs)}
    every = settings_in_all([first_runs[arm].config for arm in panel.arms])
    configs = {arm: _without_seed(found) for arm, found in zip(panel.arms, every, strict=True)}
    known = {arm: config for arm, config in configs.items() if config}
    first, base = next(iter(known.items()), ("", {}))
    changed = {arm: {k: v for k, v in config.items() if base.get(k) != v} for arm, config in configs.items()}
    if not any(changed.values()):
        return None
    has_delay = {config.get("delay") != "null" for config in known.values()}
    one_phase = " An arm without a delay has one phase, training.full." if len(has_delay) > 1 else ""
    return Table(
        title=f"Settings that differ between arms: {panel.title}",
        head=("arm", f"different from {first}"),
        rows=tuple((Cell(arm), _overrides(settings)) for arm, settings in changed.items()),
        note=f"Written as overrides of latebloom train. All other settings are equal, except the seed.{one_phase}",
        names=2,
    )


def run_settings(run: RunRecord) -> Settings:
    """Return the settings of a run without the seed; empty if its configuration is not JSON."""
    return _without_seed(settings_in_all([run.config])[0])


def _without_seed(settings: dict[str, Any]) -> Settings:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items() if k != "seed"}


def _overrides(settings: Settings) -> Cell:
    """Return settings as one would write them in a shell."""
    text = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
    return Cell(text) if text else EMPTY


@dataclass(frozen=True)
class Tried:
    """Settings that were tried for an arm."""

    settings: Settings
    runs: tuple[RunRecord, ...]

    @cached_property
    def score(self) -> float | None:
        """What settings are chosen by, see `Evaluation.score`; None if a run failed."""
        found = [run.evaluation.score for run in self.runs if run.evaluation is not None]
        return mean(found) if len(found) == len(self.runs) else None

    @cached_property
    def steps(self) -> int:
        """The steps of its runs: fewer than those of others if a round of tuning stopped it; 0 if all failed."""
        return max((run.steps or 0 for run in self.runs), default=0)


@dataclass(frozen=True)
class Tuning:
    """Everything that was tried for one arm."""

    arm: str
    tried: tuple[Tried, ...]
    """Those with the most seeds and steps first, and of these the best first."""
    chosen: Tried | None
    """The settings of the arm's runs; None if they were not tried, or if a configuration cannot be read."""

    @cached_property
    def fields(self) -> set[str]:
        """The fields in which the tried settings differ, without those of a phase that the arm does not have."""
        fields = {field for one in self.tried for field in one.settings}
        differ = {field for field in fields if len({one.settings.get(field) for one in self.tried}) > 1}
        has_delay = any(one.settings.get("delay") != "null" for one in self.tried)
        return differ if has_delay else {field for field in differ if not field.startswith("training.delayed.")}

    def next_best(self, chosen: Tried) -> float | None:
        """Return the best score of the other settings that were tried on as many seeds for as many steps."""
        size = len(chosen.runs), chosen.steps
        rivals = [one.score for one in self.tried if one is not chosen and (len(one.runs), one.steps) == size]
        return max((score for score in rivals if score is not None), default=None)

    def at_an_end(self, chosen: Tried) -> list[str]:
        """Return the fields whose chosen value is the smallest or the largest of at least three numbers."""
        found: dict[str, None] = {}
        for field in sorted(self.fields):
            numbers = {_number(one.settings.get(field)) for one in self.tried}
            is_range = len(numbers) > 2 and all(map(isfinite, numbers))
            if is_range and _number(chosen.settings.get(field)) in (min(numbers), max(numbers)):
                found[field.rpartition(".")[2]] = None
        return list(found)

    def overrides(self, one: Tried) -> Cell:
        """Return the settings in which the tried ones differ."""
        return _overrides({name: value for name, value in one.settings.items() if name in self.fields})


def choices_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table:
    """Return the chosen settings of each arm; `tuning` has the runs on tuning seeds."""
    arms = tunings(panel, tuning)
    at_ends = {one.arm: one.at_an_end(one.chosen) for one in arms if one.chosen}
    ends = [f"{arm} ({', '.join(fields)})" for arm, fields in at_ends.items() if fields]
    more = f" Chosen at an end of the tried range, so values beyond it may be better: {join_words(ends)}." * bool(ends)
    more += " Extend the range for every arm, so that all have as many settings to choose from." * bool(ends)
    return Table(
        title=f"Chosen settings: {panel.title}",
        head=("arm", "chosen", "of", "tuning seeds", "mean beyond", "next best"),
        rows=tuple((Cell(one.arm), *_chosen(one)) for one in arms),
        note=(
            "Each arm has the settings with the highest mean accuracy over the tested lengths beyond the training "
            "length (language models: the lowest loss at 1x), on tuning seeds that are not reported. Next best: the "
            "highest of the others that were tried on as many seeds. It can be higher if failed runs were repeated "
            "after the choice. These figures are biased upwards by the choice; those of the other tables are from "
            "other seeds. "
            f"Only settings that differ between the tried ones are shown.{more}"
        ),
        names=2,
    )


def _chosen(one: Tuning) -> tuple[Cell, ...]:
    if not one.tried:
        return (EMPTY,) * 5
    many = Cell("the only one" if len(one.tried) == 1 else f"{len(one.tried)} settings")
    rounds = Cell(", the best on ".join(map(str, sorted({len(tried.runs) for tried in one.tried}))))
    if one.chosen is None or one.chosen.score is None:
        return (EMPTY, many, rounds, EMPTY, EMPTY)
    return (one.overrides(one.chosen), many, rounds, _score(one.chosen.score), _score(one.next_best(one.chosen)))


def _score(value: float | None) -> Cell:
    """Return a mean accuracy, or a loss, which is negative as a score."""
    return percent(value) if value is None or value >= 0 else Cell(f"{-value:.3f} nats")


def tried_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table:
    """Return all settings that were tried, the best of an arm first."""
    rows = []
    arms = tunings(panel, tuning)
    stops = any(0 < one.steps < arm.tried[0].steps for arm in arms for one in arm.tried)
    for arm in arms:
        for one in arm.tried:
            done = sum(run.evaluation is not None for run in one.runs)
            seeds = str(done) if done == len(one.runs) else f"{done} of {len(one.runs)}"
            name = f"{arm.arm}{' (chosen)' * (one is arm.chosen)}"
            steps = (Cell(f"{one.steps:,}"),) if stops else ()
            rows.append((Cell(name), arm.overrides(one), Cell(seeds), *steps, _score(one.score)))
    head = ("arm", "setting", "tuning seeds", *(("steps",) if stops else ()), "mean beyond")
    note = "Settings that were tried on more seeds come first. Settings with a failed run are not chosen."
    if stops:
        note += (
            " Settings with fewer steps were stopped there by a round of tuning, and their figures are from that step: "
            "answers that were not trained yet count as wrong here. choices.json has the figures that were ranked."
        )
    return Table(f"All tried settings: {panel.title}", head, tuple(rows), note, names=2)


def tunings(panel: Panel, tuning: Sequence[RunRecord]) -> list[Tuning]:
    """Return what was tried for each arm of a panel."""
    by_choice: dict[str, list[RunRecord]] = {}
    for run in tuning:
        by_choice.setdefault(run.arm, []).append(run)
    found = []
    for arm in panel.arms:
        first = next(run for run in panel.runs if run.arm == arm)
        names = [name for name in by_choice if name.rpartition(CHOICE)[0] == arm]
        own, *every = map(
            _without_seed, settings_in_all([run.config for run in (first, *(by_choice[n][0] for n in names))])
        )
        tried = [Tried(settings, tuple(by_choice[name])) for settings, name in zip(every, names, strict=True)]
        tried.sort(key=lambda one: (-len(one.runs), -one.steps, 1.0 if one.score is None else -one.score))
        found.append(Tuning(arm, tuple(tried), next((one for one in tried if own and one.settings == own), None)))
    return found


def _number(value: str | None) -> float:
    try:
        return float(value or "nan")
    except ValueError:
        return nan
