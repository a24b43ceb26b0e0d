"""What the arms of a study differ in: the settings of each that are not those of the first."""

import json
import shlex
from typing import Any

from latebloom.report.panel import Panel
from latebloom.report.tables import EMPTY, Cell, Table
from latebloom.results.record import RunRecord
from latebloom.results.settings import settings_in, settings_in_all

Settings = dict[str, str]
"""A configuration as `field: value`, fields named as one would set them."""


def differences_table(panel: Panel) -> Table | None:
    """A row an arm; None where no two arms have configurations that differ."""
    first_runs = {run.arm: run for run in reversed(panel.runs)}
    every = settings_in_all([first_runs[arm].config for arm in panel.arms])
    configs = {arm: _words(found) for arm, found in zip(panel.arms, every, strict=True) if found}
    if len(configs) < 2:
        return None
    first = next(iter(configs))
    rows = []
    for arm in panel.arms:
        mine = configs.get(arm, {})
        changed = {name: value for name, value in mine.items() if configs[first].get(name) != value}
        rows.append((Cell(arm), as_written(changed)))
    if all(changes is EMPTY for _, changes in rows):
        return None
    have_delay = {config.get("delay") != "null" for config in configs.values()}
    one_phase = " An arm without a delay has one phase, that of training.full." if len(have_delay) > 1 else ""
    return Table(
        title=f"What the arms differ in: {panel.title}",
        head=("arm", f"set differently than in {first}"),
        rows=tuple(rows),
        note="As one would write it behind latebloom train; all else is the same, but for the seed." + one_phase,
        names=2,
    )


def settings_of(panel: Panel, arm: str) -> Settings:
    """The settings of an arm, all but the seed; none if its configuration is not JSON."""
    run = next((run for run in panel.runs if run.arm == arm), None)
    return {} if run is None else run_settings(run)


def run_settings(run: RunRecord) -> Settings:
    """The settings of a run, all but the seed; none if its configuration is not JSON."""
    return _words(settings_in(run.config))


def _words(settings: dict[str, Any]) -> Settings:
    """Settings as text, all but the seed."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
        if name != "seed"
    }


def as_written(settings: Settings) -> Cell:
    """Settings as one would write them in a shell."""
    said = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
    return Cell(said) if said else EMPTY
