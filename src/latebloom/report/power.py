"""How many seeds it takes to tell arms apart, from the spread of their runs on tuning seeds."""

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import NormalDist, stdev

from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.panel import Panel
from latebloom.report.settings import Tuning, tunings
from latebloom.report.statistics import LEVEL
from latebloom.report.study_tables import times
from latebloom.report.tables import EMPTY, Cell, Table, join_words
from latebloom.report.words import MOST_TOLD
from latebloom.results.record import CHOICE, RunRecord

POINTS = 0.05
"""The difference in accuracy to be told apart."""
POWER = 0.8


def power_table(panel: Panel, tuning: Sequence[RunRecord]) -> Table | None:
    """Return the spread of each arm's chosen setting over tuning seeds, and the seeds that 5 points take.

    None if no arm has two tuning seeds.
    """
    arms = tunings(panel, tuning)
    if panel.compared_length is None or not any(_values(one, panel) for one in arms):
        return None
    rows = []
    for one in arms:
        values, planned = _values(one, panel), sum(run.arm == one.arm for run in panel.runs)
        cells = (EMPTY, EMPTY, EMPTY)
        if values:
            needed = seeds_needed(stdev(values))
            cells = (Cell(str(len(values))), Cell(f"{100 * stdev(values):.1f}"), Cell(f"{needed:,}"))
        rows.append((Cell(one.arm), *cells, Cell(str(planned))))
    return Table(
        title=f"Seeds to tell {100 * POINTS:g} points apart: {panel.title}",
        head=("arm", "tuning seeds", "spread, points", "seeds needed", "seeds planned"),
        rows=tuple(rows),
        note=(
            "Spread: standard deviation over the tuning seeds of the chosen setting at "
            f"{times(panel, panel.compared_length)}. Seeds needed: for a difference of {100 * POINTS:g} points from an "
            f"arm with the same spread, two-sided at {1 - LEVEL:.0%} with a power of {POWER:.0%}, as if the seeds of "
            "both arms were independent (normal approximation, at least 6, the fewest with which the permutation test "
            "can be significant). The spread of a few tuning seeds is itself uncertain, so the number is an order of "
            "magnitude."
        ),
    )


def seeds_note(
    tuning: Sequence[RunRecord], chosen: Mapping[tuple[str, str], int], planned: Mapping[tuple[str, str], int]
) -> str:
    """Say how many seeds it takes to tell 5 points apart at three times the training length, from the tuning runs.

    `chosen` has the number of the chosen setting by task and arm, and `planned` the number of its seeds. Empty if no
    arm has two tuning seeds.
    """
    needed = {}
    for (task, arm), number in chosen.items():
        runs = [run for run in tuning if run.task == task and run.arm == f"{arm}{CHOICE}{number}"]
        values = [at.accuracy for run in runs if run.evaluation and (at := _near(run.evaluation))]
        if len(values) > 1:
            needed[task, arm] = seeds_needed(stdev(values))
    if not needed:
        return ""
    counts = " or ".join(map(str, sorted({planned[names] for names in needed})))
    more = sorted(((count, *names) for names, count in needed.items() if count > planned[names]), reverse=True)
    if not more:
        return f"by the spread over tuning seeds, the {counts} planned seeds can tell {100 * POINTS:g} points apart"
    told = join_words([f"about {count:,} for {arm} on {task}" for count, task, arm in more[:MOST_TOLD]])
    rest = f", and more than planned for {len(more) - MOST_TOLD} other arms" if len(more) > MOST_TOLD else ""
    return (
        f"by the spread over tuning seeds, telling {100 * POINTS:g} points apart takes more seeds than the {counts} "
        f"planned: {told}{rest}"
    )


def _near(evaluation: Evaluation) -> Count | None:
    """Return the count at three times the training length, or at the longest tested length up to it."""
    near = [count for count in evaluation.counts if count.length <= CLAIM * evaluation.training_length]
    return near[-1] if near else None


def seeds_needed(spread: float, points: float = POINTS) -> int:
    """Return the seeds of each of two arms with which a difference is found in 80% of studies, at the 5% level."""
    normal = NormalDist()
    z = normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)
    return max(6, ceil(2 * (z * spread / points) ** 2))


def _values(one: Tuning, panel: Panel) -> list[float]:
    """Return the accuracies of the chosen setting on tuning seeds at the compared length; none unless there are two."""
    runs = () if one.chosen is None else one.chosen.runs
    length = panel.compared_length or 0
    found = [run.evaluation.accuracy(length) for run in runs if run.evaluation and length in run.evaluation.lengths]
    return found if len(found) > 1 else []
