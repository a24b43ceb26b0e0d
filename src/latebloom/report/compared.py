"""Paired comparisons of arms over shared seeds: with baselines, of all pairs, and with the best fixed switch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from latebloom.report.panel import Panel
from latebloom.report.settings import Settings, run_settings
from latebloom.report.statistics import (
    EXACT_UP_TO,
    FLIPS_DRAWN,
    SETTLED_AT,
    Comparison,
    compare_all,
    compare_arms,
    holm,
)
from latebloom.report.study_tables import accuracy_cell, p_value, points, times
from latebloom.report.tables import EMPTY, Cell, Table

Compared = Mapping[int, Sequence[Comparison]]
"""The comparisons of a panel at the compared length and at the longest tested one."""
MOST_PAIRED = 30
"""Of more arms, all pairs would fill a page that nobody reads."""
FIXED = ("at_step", "at_fraction")
"""Triggers that name a step."""


def comparisons(several: Sequence[Panel]) -> Sequence[Compared]:
    """Return the comparisons of each panel.

    Holm's correction covers all comparisons that a study makes at the compared length; those at the longest length are
    a family of their own.
    """
    found = [{length: _pairs(panel, length) for length in panel.near_and_far} for panel in several]
    for study in {panel.study for panel in several}:
        of_study = [one for one, panel in zip(found, several, strict=True) if panel.study == study]
        for distance in (0, 1):
            places = [(one, list(one)[distance]) for one in of_study if len(one) > distance]
            of_all = sum(_left_out(panel) for panel in several if panel.study == study)
            corrected = iter(holm([pair for one, length in places for pair in one[length]], of_all))
            for one, length in places:
                one[length] = [next(corrected) for _ in one[length]]
    return found


def _left_out(panel: Panel) -> int:
    """Return how many pairs of arms are not compared; the correction counts them, because the best arm was chosen by
    the values that are compared."""
    arms = len(panel.standings())
    return 0 if panel.against or arms <= MOST_PAIRED else arms * (arms - 1) // 2 - (arms - 1)


def _pairs(panel: Panel, length: int) -> list[Comparison]:
    """Compare each arm with its baselines. If the study names none, compare all pairs of arms, the better one first; of
    many arms, the best one with each of the others."""
    if panel.against:
        pairs = [(arm, other) for arm, others in panel.against.items() for other in others]
    else:
        ranked = [arm for arm, _ in panel.standings(length)]
        pairs = list(combinations(ranked, 2))
        if len(ranked) > MOST_PAIRED:
            pairs = [(ranked[0], other) for other in ranked[1:]]
    compared = compare_all([(*pair, panel.by_seed(pair[0], length), panel.by_seed(pair[1], length)) for pair in pairs])
    return [one for one in compared if one is not None]


def comparison_tables(panel: Panel, compared: Compared) -> dict[str, Table]:
    """Return a table for the compared length and one for the longest: `effects` if the study names baselines,
    `compared` if not."""
    name = "effects" if panel.against else "compared"
    names = dict(zip(panel.near_and_far, (name, f"{name}-far"), strict=False))
    return {names[length]: comparison_table(panel, length, several) for length, several in compared.items() if several}


def comparison_table(panel: Panel, length: int, compared: Sequence[Comparison]) -> Table:
    """Return the paired differences at one length, with the accuracy of each arm if the study names baselines."""
    pairs = {(one.first, one.second): one for one in compared}
    title, level, wanted = "Arms compared", (), list(pairs)
    if panel.against:
        title, level = "Effects of changes", (times(panel, length),)
        wanted = [(arm, other) for arm in panel.shown for other in panel.against[arm] or ("",)]
    rows = []
    for arm, other in wanted:
        accuracy = (accuracy_cell(panel, arm, length),) if level else ()
        rows.append((Cell(arm), Cell(other) if other else EMPTY, *accuracy, *_cells(pairs.get((arm, other)))))
    return Table(
        title=f"{title} at length {length}: {panel.title}",
        head=("arm", "baseline", *level, "difference, points", "ahead in", "Cliff's delta", "p", "p, corrected"),
        rows=tuple(rows),
        note=_note(compared),
        names=2,
    )


def _cells(one: Comparison | None) -> tuple[Cell, ...]:
    """Return a difference and its significance."""
    if one is None:
        return (EMPTY,) * 5
    ahead = f"{one.ahead} of {one.difference.seeds} seeds{f', {one.tied} tied' * bool(one.tied)}"
    numbers = (ahead, f"{one.dominance:+.2f}", p_value(one.p), p_value(one.p_corrected))
    return points(one.difference), *map(Cell, numbers)


def _note(compared: Sequence[Comparison]) -> str:
    """Explain the columns, the correction, and the smallest possible p value if it is not small enough."""
    many = compared[0].together
    text = (
        "Difference: arm - baseline in percentage points, the mean over shared seeds, with a 95% bootstrap interval "
        "that is not corrected for multiple comparisons, and with fewer than about ten seeds is somewhat too narrow. "
        "Cliff's delta: how often a seed of the arm beats one of the baseline minus how often it loses (-1 to 1), over "
        "all pairs of seeds. p: two-sided sign-flip permutation test over shared seeds, with all flips for up to "
        f"{EXACT_UP_TO} seeds and {FLIPS_DRAWN:,} random ones for more; corrected (Holm) for the {many} "
        f"comparison{'s' * (many > 1)} of the study at this distance."
    )
    stuck = {one.difference.seeds: one for one in compared if one.smallest_corrected >= SETTLED_AT}
    if stuck:
        most, fewer = max(stuck), " or fewer" * (len(stuck) > 1)
        smallest = p_value(stuck[most].smallest_corrected)
        text += f" With {most} shared seeds{fewer} the corrected p cannot be below {smallest}."
    return text


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
