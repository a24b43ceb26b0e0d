"""The settings in which the arms of a study differ."""

import json
import shlex
from typing import Any

from latebloom.report.panel import Panel
from latebloom.report.tables import EMPTY, Cell, Table
from latebloom.results.record import RunRecord
from latebloom.results.settings import settings_in, settings_in_all

Settings = dict[str, str]
"""A configuration as `field: value`, with the names that overrides use."""


def differences_table(panel: Panel) -> Table | None:
    """Return the settings of each arm that differ from the first arm; None if no two configurations differ."""
    first_runs = {run.arm: run for run in reversed(panel.runs)}
    every = settings_in_all([first_runs[arm].config for arm in panel.arms])
    configs = {arm: _without_seed(found) for arm, found in zip(panel.arms, every, strict=True)}
    known = {arm: config for arm, config in configs.items() if config}
    if not known:
        return None
    first, base = next(iter(known.items()))
    changed = {arm: {k: v for k, v in config.items() if base.get(k) != v} for arm, config in configs.items()}
    if not any(changed.values()):
        return None
    has_delay = {config.get("delay") != "null" for config in known.values()}
    one_phase = " An arm without a delay has one phase, training.full." if len(has_delay) > 1 else ""
    return Table(
        title=f"Settings that differ between arms: {panel.title}",
        head=("arm", f"different from {first}"),
        rows=tuple((Cell(arm), as_overrides(settings)) for arm, settings in changed.items()),
        note=f"Written as overrides of latebloom train. All other settings are equal, except the seed.{one_phase}",
        names=2,
    )


def run_settings(run: RunRecord) -> Settings:
    """Return the settings of a run without the seed; empty if its configuration is not JSON."""
    return _without_seed(settings_in(run.config))


def _without_seed(settings: dict[str, Any]) -> Settings:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
        if name != "seed"
    }


def as_overrides(settings: Settings) -> Cell:
    """Return settings as one would write them in a shell."""
    text = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
    return Cell(text) if text else EMPTY
