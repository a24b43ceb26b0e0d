"""Ranges of choices that are extended where the best choice of an arm is at an end."""

from collections.abc import Sequence
from typing import Literal, get_args

from latebloom.results.collect import StudyRun
from latebloom.studies.rounds import Tuning, name_arms

Side = Literal["below", "above"]
SIDES: tuple[Side, ...] = get_args(Side)


def extend_ranges(tuned: Sequence[Tuning]) -> list[StudyRun]:
    """Extend the range of choices where the best of an arm is at its end; return the runs that this takes.

    Every arm of the group gets one more choice, its best one with its own next value on that side, so that all arms
    have as many settings to choose from. Empty if no best choice is at an end, or if no further values are left there.
    """
    groups: dict[str, list[Tuning]] = {}
    for tuning in tuned:
        groups.setdefault(tuning.arm.task, []).append(tuning)
    runs: list[StudyRun] = []
    for group in groups.values():
        ends = [(one, end_reached(one)) for one in group]
        for side in SIDES:
            if any(end == side and _further(one, side) is not None for one, end in ends):
                runs += [run for one in group for run in _extend(one, side)]
    return runs


def end_reached(tuning: Tuning) -> Side | None:
    """Return the end of its range at which the best choice of an arm is; None if it is inside, or has no range."""
    values, best = _values(tuning), tuning.rankings[-1].best(1)
    if len(set(values)) < 2 or not best:
        return None
    ends: dict[float, Side] = {min(values): "below", max(values): "above"}
    return ends.get(values[best[0]])


def describe_ends(tuned: Sequence[Tuning]) -> str:
    """Say for which arms the best choice is at an end of a range that has no further values; empty if for none."""
    arms = name_arms([one.arm for one in tuned if end_reached(one)])
    return arms and f"the best setting is still at an end of its range, and the plan has no further values, for {arms}"


def _values(tuning: Tuning) -> list[float]:
    axis = tuning.arm.axis
    return [] if axis is None else [axis.value(choice) for choice in tuning.choices]


def _further(tuning: Tuning, side: Side) -> float | None:
    """Return the next value beyond the range of an arm; None if there is none left."""
    axis, values = tuning.arm.axis, _values(tuning)
    if axis is None:
        return None
    left = [v for v in getattr(axis, side) if (v < min(values) if side == "below" else v > max(values))]
    return left[0] if left else None


def _extend(tuning: Tuning, side: Side) -> list[StudyRun]:
    """Add the best choice with the next value; return its runs, none if there is no value or no choice."""
    axis, value, best = tuning.arm.axis, _further(tuning, side), tuning.rankings[-1].best(1)
    if axis is None or value is None or not best:
        return []
    return tuning.add(axis.put(tuning.choices[best[0]], value))
