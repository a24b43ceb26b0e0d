"""Arms against each other, seed by seed: all of them, or each with those that the study holds it against."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from latebloom.report.panel import Panel
from latebloom.report.statistics import EXACT_UP_TO, FLIPS_DRAWN, SETTLED_AT, Comparison, compare_arms, holm
from latebloom.report.study_tables import accuracy_cell, p_value, points, times
from latebloom.report.tables import EMPTY, Cell, Table

TESTED = ("ahead in", "Cliff's delta", "p", "p, corrected")
"""The columns that tell how sure a difference is."""
Compared = Mapping[int, Sequence[Comparison]]
"""The comparisons of a panel at the compared length and at the longest."""


def comparisons(several: Sequence[Panel]) -> Sequence[Compared]:
    """Of each panel; Holm's correction is over all that a study compares near, and apart from it over all far."""
    found = [{length: _pairs(panel, length) for length in panel.near_and_far} for panel in several]
    for study in {panel.study for panel in several}:
        of_study = [one for one, panel in zip(found, several, strict=True) if panel.study == study]
        for distance in (0, 1):
            places = [(one, list(one)[distance]) for one in of_study if len(one) > distance]
            corrected = iter(holm([pair for one, length in places for pair in one[length]]))
            for one, length in places:
                one[length] = [next(corrected) for _ in one[length]]
    return found


def _pairs(panel: Panel, length: int) -> list[Comparison]:
    """Each arm and those that it is held against; if the study names none, all pairs, the better first."""
    if panel.against:
        pairs = [(arm, other) for arm, others in panel.against.items() for other in others]
    else:
        pairs = list(combinations([arm for arm, _ in panel.standings_at(length)], 2))
    compared = (compare_arms(*pair, *(panel.by_seed(arm, length) for arm in pair)) for pair in pairs)
    return [one for one in compared if one is not None]


def comparison_tables(panel: Panel, compared: Compared) -> dict[str, Table]:
    """What each change does, where the study says what its arms are held against; if not, every pair of arms. One table
    near and one far."""
    make, name = (effects_table, "effects") if panel.against else (comparison_table, "compared")
    names = dict(zip(panel.near_and_far, (name, f"{name}-far"), strict=False))
    return {names[length]: make(panel, length, several) for length, several in compared.items() if several}


def comparison_table(panel: Panel, length: int, compared: Sequence[Comparison]) -> Table:
    """Arms against each other at one length, the better first."""
    return Table(
        title=f"Arms compared at length {length} ({length / panel.training_length:.3g}x): {panel.title}",
        head=("first", "second", "difference", *TESTED),
        rows=tuple((Cell(one.first), Cell(one.second), *_cells(one)) for one in compared),
        note=f"Difference: percentage points, the mean over shared seeds of first minus second. {_about(compared)}",
        names=2,
    )


def effects_table(panel: Panel, length: int, compared: Sequence[Comparison]) -> Table:
    """Each arm at one length, and how far it is ahead of those that it is held against."""
    pairs = {(one.first, one.second): one for one in compared}
    rows = []
    for arm in panel.shown:
        for other in panel.against[arm] or ("",):
            one = pairs.get((arm, other))
            cells = _cells(one) if one else (EMPTY,) * (1 + len(TESTED))
            rows.append((Cell(arm), Cell(other) if other else EMPTY, accuracy_cell(panel, arm, length), *cells))
    return Table(
        title=f"What each change does at length {length}: {panel.title}",
        head=("arm", "against", times(panel, length), "ahead, points", *TESTED),
        rows=tuple(rows),
        note=(
            "Ahead: percentage points, the mean over shared seeds of the arm less the one that it is held against. "
            + _about(compared)
        ),
        names=2,
    )


def _cells(one: Comparison) -> tuple[Cell, ...]:
    """A difference, and how sure it is."""
    tied = f", {one.tied} tied" if one.tied else ""
    return (
        points(one.difference),
        Cell(f"{one.ahead} of {one.difference.seeds} seeds{tied}"),
        Cell(f"{one.dominance:+.2f}"),
        Cell(p_value(one.p)),
        Cell(p_value(one.p_corrected)),
    )


def _about(compared: Sequence[Comparison]) -> str:
    """What the numbers are, for how many comparisons p is corrected, and what it is at best."""
    many = compared[0].together
    text = (
        "Its interval is a bootstrap's of 95%, not corrected for many comparisons, and with fewer than about ten seeds "
        "somewhat too narrow. Cliff's delta: how often a seed of the one arm beats one of the other, less how often it "
        "is beaten (-1 to 1); any two seeds count, so a few that fall far can give the mean the other sign. "
        f"p: two-sided sign-flip permutation test over shared seeds, all flips of up to {EXACT_UP_TO} of them and of "
        f"more {FLIPS_DRAWN:,} that are drawn; corrected after Holm for the {many} pair{'s' * (many > 1)} that the "
        "study compares this far out."
    )
    stuck = [one for one in compared if one.smallest_corrected >= SETTLED_AT]
    if stuck:
        most = max(stuck, key=lambda one: one.difference.seeds)
        fewer = " or fewer" * (len({one.difference.seeds for one in stuck}) > 1)
        text += f" With {most.difference.seeds} shared seeds{fewer} it is {p_value(most.smallest_corrected)} at best."
    return text
