"""The tables of a study: accuracy, reach and cliff."""

from statistics import median

from latebloom.evaluation.interval import binomial_interval
from latebloom.evaluation.result import HOLDS_AT, Evaluation, held_length
from latebloom.report.panel import Panel
from latebloom.report.statistics import Estimate, mean_interval
from latebloom.report.tables import EMPTY, MISSING, Cell, Table

FEW = 5
"""Seeds below which an interval over them says little."""
MULTIPLES = (1, 2, 3, 4, 8, 16, 32, 64)
"""Of the tested lengths, the multiples that the short table shows, with the longest of all."""


def accuracy_table(panel: Panel) -> Table:
    """A row an arm, a column for each of the main lengths."""
    lengths = _main_lengths(panel)
    rows = [(Cell(arm), seeds_of(panel, arm), *(accuracy_cell(panel, arm, n) for n in lengths)) for arm in panel.arms]
    return Table(
        title=f"All answers right: {panel.title}",
        head=("arm", "seeds", *(times(panel, length) for length in lengths)),
        rows=tuple(rows),
        note=_over_seeds(panel, "Mean over seeds"),
    )


def every_length_table(panel: Panel) -> Table:
    """A row for each tested length, a column an arm."""
    return Table(
        title=f"All answers right at every tested length: {panel.title}",
        head=("length", *panel.arms),
        rows=tuple(
            (Cell(times(panel, n)), *(accuracy_cell(panel, arm, n) for arm in panel.arms)) for n in panel.lengths
        ),
        note=_over_seeds(panel, "Mean over seeds"),
    )


def reach_table(panel: Panel) -> Table:
    """How far each arm holds, and whether it falls off a cliff."""
    rows = [(Cell(arm), *_reach(panel, list(panel.finished[arm].values()))) for arm in panel.arms]
    return Table(
        title=f"Reach and cliff: {panel.title}",
        head=("arm", "reach", "least", "most", "hold to the end", "seeds with a cliff", "cliff at"),
        rows=tuple(rows),
        note=(
            f"Reach: the longest tested length, in training lengths, up to which accuracy is {HOLDS_AT:.0%} or more at "
            f"every tested length; 0x where it is less at the shortest{_shortest(panel)}. A seed that holds to the end "
            f"could reach further than was tested. Cliff: {HOLDS_AT:.0%} or more at the training length and less than "
            "half of that within twice it; at the median over the seeds that have one. "
            + _over_seeds(panel, "Mean over seeds")
            + ("" if panel.is_single else " Share of seeds: exact 95% interval.")
        ),
    )


def accuracy_cell(panel: Panel, arm: str, length: int) -> Cell:
    """An accuracy with its interval over seeds, and how many there are if it is not all that the arm has."""
    estimate = panel.estimate(arm, length)
    if estimate is None:
        return EMPTY
    fewer = f" ({estimate.seeds} seed{'s' * (estimate.seeds > 1)})" * (estimate.seeds < len(panel.finished[arm]))
    interval = "" if estimate.low is None else f"{100 * estimate.low:.1f}, {100 * (estimate.high or 0):.1f}"
    return Cell(f"{estimate.mean:.1%}{fewer}", interval)


def times(panel: Panel, length: int) -> str:
    return f"{length / panel.training_length:.3g}x ({length})"


def points(estimate: Estimate) -> Cell:
    """A difference of accuracies in percentage points."""
    interval = (
        f"{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}"
        if estimate.low is not None and estimate.high is not None
        else ""
    )
    return Cell(f"{100 * estimate.mean:+.1f}", interval)


def seeds_of(panel: Panel, arm: str) -> Cell:
    """How many of an arm's runs finished, if not all did."""
    planned = sum(run.arm == arm for run in panel.runs)
    done = len(panel.finished[arm])
    return Cell(str(done) if done == planned else f"{done} of {planned}")


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1g}"


def _main_lengths(panel: Panel) -> list[int]:
    wanted = {multiple * panel.training_length for multiple in MULTIPLES}
    shown = [length for length in panel.lengths if length in wanted]
    return shown + [length for length in panel.lengths[-1:] if length not in wanted]


def _reach(panel: Panel, evaluations: list[Evaluation]) -> tuple[Cell, ...]:
    if not evaluations:
        return (EMPTY,) * 6
    reaches = [evaluation.reach for evaluation in evaluations]
    over = mean_interval(reaches)
    interval = "" if over.low is None else f"{over.low:.3g}, {over.high:.3g}"
    to_the_end = sum(held_length(one.counts) == max(one.lengths) for one in evaluations)
    tested = [evaluation for evaluation in evaluations if evaluation.cliff_tested]
    cliffs = [evaluation.cliff for evaluation in tested if evaluation.cliff is not None]
    return (
        Cell(f"{over.mean:.3g}x", interval),
        Cell(f"{min(reaches):.3g}x"),
        Cell(f"{max(reaches):.3g}x"),
        _share(to_the_end, len(evaluations)),
        _share(len(cliffs), len(tested)) if tested else EMPTY,
        Cell(f"{median(cliffs):g}" if cliffs else MISSING if not tested else "none"),
    )


def _shortest(panel: Panel) -> str:
    return f" ({panel.lengths[0]})" if panel.lengths else ""


def _share(part: int, whole: int) -> Cell:
    low, high = binomial_interval(part, whole)
    return Cell(f"{part} of {whole}", f"{low:.0%}, {high:.0%}" if whole > 1 else "")


def _over_seeds(panel: Panel, what: str) -> str:
    if panel.is_single:
        return "One seed: there are no error bars."
    return f"{what} with its 95% bootstrap interval{if_few(panel)}; {MISSING} means not measured."


def if_few(panel: Panel) -> str:
    """What an interval over few seeds is worth; nothing if there are more."""
    fewest = min((len(seeds) for seeds in panel.finished.values() if len(seeds) > 1), default=FEW)
    return "" if fewest >= FEW else f", which for {fewest} seeds is at most their range, and far too narrow"
