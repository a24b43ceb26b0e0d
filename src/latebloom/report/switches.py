"""The table of switch steps, for studies whose arms differ in the trigger."""

from dataclasses import dataclass
from statistics import fmean, median

from latebloom.report.panel import Panel
from latebloom.report.settings import Settings, run_settings
from latebloom.report.statistics import compare_arms
from latebloom.report.study_tables import accuracy_cell, points, times
from latebloom.report.tables import EMPTY, Cell, Table

FIXED = ("at_step", "at_fraction")


@dataclass(frozen=True)
class Switches:
    """The switch steps of an arm's seeds."""

    arm: str
    steps: list[int]
    budget: int
    """The number of training steps."""
    is_fixed: bool
    """Whether the trigger names a step."""
    otherwise: Settings
    """The settings without the trigger: arms with equal ones differ only in the trigger."""


def switch_table(panel: Panel) -> Table | None:
    """Return each arm's switch step beside the best fixed one; None unless arms differ in nothing but the trigger."""
    found = [one for arm in panel.shown if (one := _switches(panel, arm)) is not None]
    if not any(one.otherwise == other.otherwise for one in found for other in found if one is not other):
        return None
    lengths = panel.near_and_far
    heads = [head for n in lengths for head in (times(panel, n), "behind the best fixed, points", "steps later")]
    return Table(
        title=f"Switch step: {panel.title}",
        head=("arm", "switch at step", *heads),
        rows=tuple(_row(panel, one, found, lengths) for one in found),
        note=(
            "Switch: median over seeds, and the range. The best fixed switch is the best of the arms with equal other "
            "settings, chosen in hindsight at each length. How far an arm is behind it: paired difference in "
            "percentage points with a 95% bootstrap interval. How much later it switches: mean, in steps and as a "
            "share of all steps."
        ),
    )


def _switches(panel: Panel, arm: str) -> Switches | None:
    runs = [run for run in panel.runs if run.arm == arm and run.switch_step is not None and run.steps is not None]
    settings = run_settings(runs[0]) if runs else {}
    if not settings:
        return None
    otherwise = {name: value for name, value in settings.items() if not name.startswith("delay.until.")}
    is_fixed = settings.get("delay.until.name") in FIXED
    return Switches(arm, [run.switch_step or 0 for run in runs], runs[0].steps or 1, is_fixed, otherwise)


def _row(panel: Panel, one: Switches, found: list[Switches], lengths: list[int]) -> tuple[Cell, ...]:
    least, most = min(one.steps), max(one.steps)
    cells = [Cell(one.arm), Cell(f"{median(one.steps):,.0f}", f"{least:,}, {most:,}" if least < most else "")]
    rivals = [other for other in found if other.is_fixed and other.otherwise == one.otherwise]
    for length in lengths:
        tested = [rival for rival in rivals if panel.by_seed(rival.arm, length)]
        best = max(tested, key=lambda rival: fmean(panel.by_seed(rival.arm, length).values()), default=one)
        lost = compare_arms(best.arm, one.arm, *(panel.by_seed(arm, length) for arm in (best.arm, one.arm)))
        later = fmean(one.steps) - fmean(best.steps)
        behind = (EMPTY, EMPTY)
        if best is one and tested:
            behind = (Cell("the best fixed"), EMPTY)
        elif best is not one and lost is not None:
            behind = (points(lost.difference), Cell(f"{later:+,.0f} ({later / one.budget:+.0%})"))
        cells += [accuracy_cell(panel, one.arm, length), *behind]
    return tuple(cells)
