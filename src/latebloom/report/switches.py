"""When attention came in, and what another moment would have given: the table of a study that compares triggers."""

import json
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from latebloom.report.differences import run_settings
from latebloom.report.panel import Panel
from latebloom.report.statistics import compare_arms
from latebloom.report.study_tables import accuracy_cell, points, times
from latebloom.report.tables import EMPTY, Cell, Table

FIXED = ("at_step", "at_fraction")


@dataclass(frozen=True)
class Switches:
    """The moments at which an arm's seeds switched, and what decides them."""

    arm: str
    steps: tuple[int, ...]
    """One a seed."""
    budget: int
    """Steps of a run in all."""
    trigger: str
    otherwise: str
    """The configuration without its trigger: arms that have the same differ in the moment alone."""

    @property
    def is_fixed(self) -> bool:
        return self.trigger in FIXED

    @cached_property
    def mean(self) -> float:
        return fmean(self.steps)


def switch_table(panel: Panel) -> Table | None:
    """A row for each arm that switches, beside the best fixed moment; None unless arms differ in the moment alone."""
    found = [one for arm in panel.shown if (one := _switches(panel, arm)) is not None]
    groups = [one.otherwise for one in found]
    lengths = panel.near_and_far
    if not lengths or len(set(groups)) == len(groups):
        return None
    heads = [head for n in lengths for head in (times(panel, n), "behind the best fixed, points", "steps later")]
    return Table(
        title=f"When attention comes in: {panel.title}",
        head=("arm", "switch at step", *heads),
        rows=tuple(_row(panel, one, found, lengths) for one in found),
        note=(
            "Switch: the median over seeds, and the range. The best fixed switch is that of the arms with all other "
            "settings the same, chosen in hindsight at each length; how far an arm is behind it is in percentage "
            "points, seed by seed, with its 95% bootstrap interval, and how much later it switches on average in steps "
            "and as a share of all steps."
        ),
    )


def _switches(panel: Panel, arm: str) -> Switches | None:
    runs = [run for run in panel.runs if run.arm == arm and run.switch_step is not None and run.steps is not None]
    if not runs:
        return None
    settings = run_settings(runs[0])
    if not settings:
        return None
    otherwise = {name: value for name, value in settings.items() if not name.startswith("delay.until.")}
    steps = tuple(run.switch_step for run in runs if run.switch_step is not None)
    trigger = settings.get("delay.until.name", "")
    return Switches(arm, steps, runs[0].steps or 1, trigger, json.dumps(otherwise, sort_keys=True))


def _row(panel: Panel, one: Switches, found: list[Switches], lengths: list[int]) -> tuple[Cell, ...]:
    least, most = min(one.steps), max(one.steps)
    cells = [Cell(one.arm), Cell(f"{median(one.steps):,.0f}", f"{least:,}, {most:,}" if least < most else "")]
    rivals = [other for other in found if other.is_fixed and other.otherwise == one.otherwise]
    for length in lengths:
        cells.append(accuracy_cell(panel, one.arm, length))
        tested = [rival for rival in rivals if panel.by_seed(rival.arm, length)]
        best = max(tested, key=lambda rival: fmean(panel.by_seed(rival.arm, length).values()), default=None)
        if best is one:
            cells += [Cell("the best fixed"), EMPTY]
            continue
        lost = best and compare_arms(best.arm, one.arm, *(panel.by_seed(arm, length) for arm in (best.arm, one.arm)))
        if best is None or lost is None:
            cells += [EMPTY, EMPTY]
            continue
        later = one.mean - best.mean
        cells += [points(lost.difference), Cell(f"{later:+,.0f} ({later / one.budget:+.0%})")]
    return tuple(cells)
