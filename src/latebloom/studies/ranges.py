"""Ranges of choices that are extended where the best choice of an arm is at an end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.errors import LatebloomError
from latebloom.results.collect import StudyRun
from latebloom.studies.rounds import Tuning, name_arms

Side = Literal["below", "above"]
SIDES: tuple[Side, ...] = get_args(Side)


def extend_ranges(tuned: Sequence[Tuning]) -> list[StudyRun]:
    """Extend the range of choices where the best of an arm is at its end; return the runs that this takes.

    Every arm of the group gets one more choice, its best one with its own next value on that side, so that all arms
    have as many settings to choose from. Empty if no best choice is at an end, or if no further values are left there.

    A choice that was added when the study was given before is added again, even if a run that failed then has succeeded
    since, and the range would be extended in another way.
    """
    groups: dict[str, list[Tuning]] = {}
    for tuning in tuned:
        groups.setdefault(tuning.arm.task, []).append(tuning)
    runs: list[StudyRun] = []
    for group in groups.values():
        ends = [(one, end_reached(one)) for one in group]
        sides: list[Side] = [
            side for side in SIDES if any(end == side and _further(one, side) is not None for one, end in ends)
        ]
        added = [_beyond(one, sides) for one in group]
        if not all(map(_continues, group, added)):
            before = [_added_before(one) for one in group]
            sides = [found[0] for found in before if found is not None]
            added = [[found[1]] if found else _beyond(one, sides[:1]) for one, found in zip(group, before, strict=True)]
        for one, choices in zip(group, added, strict=True):
            runs += [run for choice in choices for run in one.add(choice)]
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


def _beyond(tuning: Tuning, sides: Sequence[Side]) -> list[RunConfig]:
    """Return the best choice with the next value on each side; none where there is no value or no choice."""
    axis, best = tuning.arm.axis, tuning.rankings[-1].best(1)
    values = [value for side in sides if (value := _further(tuning, side)) is not None]
    return [] if axis is None or not best else [axis.put(tuning.choices[best[0]], value) for value in values]


def _continues(tuning: Tuning, added: Sequence[RunConfig]) -> bool:
    """Return whether choices that would be added are those in the folder of the study, as far as these have begun."""
    for number, choice in enumerate(added, start=len(tuning.choices)):
        run = _begun_before(tuning, number)
        if run is not None and replace(choice, seed=run.seed).hash != run.hash:
            return False
    return bool(added) or _added_before(tuning) is None


def _added_before(tuning: Tuning) -> tuple[Side, RunConfig] | None:
    """Return the choice that was added next when the study was given before, with its side; None if there is none."""
    axis, run = tuning.arm.axis, _begun_before(tuning, len(tuning.choices))
    if axis is None or run is None:
        return None
    for side in SIDES:
        if (value := _further(tuning, side)) is None:
            continue
        for choice in tuning.choices:
            beyond = axis.put(choice, value)
            if replace(beyond, seed=run.seed).hash == run.hash:
                return side, beyond
    return None


def _begun_before(tuning: Tuning, number: int) -> RunConfig | None:
    """Return the configuration of the first run in the folder of a choice; None if none has begun."""
    for seed in tuning.seeds:
        folder = RunFolder(tuning.folder(number, seed))
        try:
            if folder.config_file.exists():
                return folder.read_config()
        except LatebloomError:  # the run itself will say what is wrong
            return None
    return None
