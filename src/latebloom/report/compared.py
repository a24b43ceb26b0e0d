"""Arms against each other, seed by seed: all of them, or each with those that the study holds it against."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from latebloom.report.panel import Panel
from latebloom.report.statistics import Comparison, compare_arms, holm
from latebloom.report.study_tables import accuracy_cell, p_value, points, times
from latebloom.report.tables import EMPTY, Cell, Table

SETTLED_AT = 0.05
"""A difference with a p value below this is not put down to chance."""
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
    """What each change does, where the study says what its arms are held against; if not, every pair of arms."""
    if not any(compared.values()):
        return {}
    if panel.against:
        return {"effects": effects_table(panel, compared)}
    names = ("compared", "compared-far")
    return {
        name: comparison_table(panel, length, compared[length])
        for name, length in zip(names, panel.near_and_far, strict=False)
        if compared[length]
    }


def comparison_table(panel: Panel, length: int, compared: Sequence[Comparison]) -> Table:
    """Arms against each other at one length, the better first."""
    return Table(
        title=f"Arms compared at length {length} ({length / panel.training_length:.3g}x): {panel.title}",
        head=("first", "second", "difference", "ahead in", "Cliff's delta", "p", "p, corrected"),
        rows=tuple(_compared(one) for one in compared),
        note=(
            "Difference: percentage points, the mean over shared seeds of first minus second, with its 95% bootstrap "
            f"interval. {_about_tests([compared])}"
        ),
        names=2,
    )


def effects_table(panel: Panel, compared: Compared) -> Table:
    """Each arm near and far, and how far it is from those that it is held against."""
    rows = []
    for arm in panel.shown:
        for other in panel.against[arm] or (None,):
            cells = [Cell(arm), EMPTY if other is None else Cell(other)]
            for length in panel.near_and_far:
                one = next((c for c in compared[length] if (c.first, c.second) == (arm, other)), None)
                cells += [accuracy_cell(panel, arm, length), *(_effect(one) if one else (EMPTY,) * 3)]
            rows.append(tuple(cells))
    heads = ((times(panel, length), "ahead, points", "Cliff's delta", "p, corrected") for length in panel.near_and_far)
    return Table(
        title=f"What each change does: {panel.title}",
        head=("arm", "against", *(text for head in heads for text in head)),
        rows=tuple(rows),
        note=(
            "Ahead: percentage points, the mean over shared seeds of the arm less the one that it is held against, "
            f"with its 95% bootstrap interval. {_about_tests([several for several in compared.values() if several])}"
        ),
        names=2,
    )


def _about_tests(near_and_far: Sequence[Sequence[Comparison]]) -> str:
    """What delta and p are, for how many comparisons p is corrected at each distance, and what it is at best."""
    pairs = [f"{several[0].together} pair{'s' * (several[0].together > 1)}" for several in near_and_far]
    family = f"{pairs[0]} that the study compares this far out"
    if len(pairs) > 1:
        family = f"{pairs[0]} that the study compares near, and apart from these for the {pairs[1]} far"
    text = (
        "Cliff's delta: how often a seed of the one arm beats one of the other, less how often it is beaten (-1 to 1). "
        "p: two-sided sign-flip permutation test over shared seeds, exact up to 16 of them; corrected after Holm for "
        f"the {family}."
    )
    stuck = [one for several in near_and_far for one in several if one.smallest_corrected >= SETTLED_AT]
    if stuck:
        most = max(stuck, key=lambda one: one.difference.seeds)
        fewer = " or fewer" * (len({one.difference.seeds for one in stuck}) > 1)
        text += f" With {most.difference.seeds} shared seeds{fewer} it is {p_value(most.smallest_corrected)} at best."
    return text


def _compared(one: Comparison) -> tuple[Cell, ...]:
    tied = f", {one.tied} tied" if one.tied else ""
    return (
        Cell(one.first),
        Cell(one.second),
        points(one.difference),
        Cell(f"{one.ahead} of {one.difference.seeds} seeds{tied}"),
        Cell(f"{one.dominance:+.2f}"),
        Cell(p_value(one.p)),
        Cell(p_value(one.p_corrected)),
    )


def _effect(one: Comparison) -> tuple[Cell, ...]:
    return points(one.difference), Cell(f"{one.dominance:+.2f}"), Cell(p_value(one.p_corrected))
