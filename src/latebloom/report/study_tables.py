"""Tables of accuracy, reach and cliff: of one run, and of the arms of a study."""

from statistics import median

from latebloom.evaluation.interval import binomial_interval
from latebloom.evaluation.result import HOLDS_AT, Evaluation, held_length
from latebloom.report.panel import Panel
from latebloom.report.statistics import Estimate, mean_interval
from latebloom.report.tables import EMPTY, MISSING, Cell, Table

FEW = 5
"""Seeds below which an interval over them says little."""
MULTIPLES = (1, 2, 3, 4, 8, 16, 32, 64)
"""The short accuracy table shows these multiples of the training length, and the longest tested length."""


def accuracy_table(panel: Panel) -> Table:
    """Return a row for each arm and a column for each of the main lengths."""
    wanted = {multiple * panel.training_length for multiple in MULTIPLES} | set(panel.lengths[-1:])
    lengths = [length for length in panel.lengths if length in wanted]
    rows = []
    for arm in panel.arms:
        planned, done = sum(run.arm == arm for run in panel.runs), len(panel.finished[arm])
        seeds = Cell(str(done) if done == planned else f"{done} of {planned}")
        rows.append((Cell(arm), seeds, *(accuracy_cell(panel, arm, length) for length in lengths)))
    head = ("arm", "seeds", *(times(panel, length) for length in lengths))
    return Table(f"All answers right: {panel.title}", head, tuple(rows), mean_note(panel))


def every_length_table(panel: Panel) -> Table:
    """Return a row for each tested length and a column for each arm."""
    rows = [(Cell(times(panel, n)), *(accuracy_cell(panel, arm, n) for arm in panel.arms)) for n in panel.lengths]
    title = f"All answers right at every tested length: {panel.title}"
    return Table(title, ("length", *panel.arms), tuple(rows), mean_note(panel))


def reach_table(panel: Panel) -> Table:
    """Return how far each arm holds, and whether it has a cliff."""
    shortest = f" ({panel.lengths[0]})" if panel.lengths else ""
    return Table(
        title=f"Reach and cliff: {panel.title}",
        head=("arm", "reach", "least", "most", "hold to the end", "seeds with a cliff", "cliff at", "fail at 1x"),
        rows=tuple((Cell(arm), *_reach(list(panel.finished[arm].values())), _failed(panel, arm)) for arm in panel.arms),
        note=(
            f"Reach: the longest tested length, in training lengths, up to which accuracy is at least {HOLDS_AT:.0%} "
            f"at every tested length; 0x if it is lower at the shortest{shortest}. A seed that holds to the end may "
            f"reach further than was tested. Cliff: at least {HOLDS_AT:.0%} at the training length and less than half "
            "of that within twice the length; the median over the seeds that have one. Fail at 1x: seeds below "
            f"{HOLDS_AT:.0%} at the training length, which all figures include."
            + ("" if panel.is_single else f" {mean_note(panel)} Share of seeds: exact 95% interval.")
        ),
    )


def _reach(evaluations: list[Evaluation]) -> tuple[Cell, ...]:
    if not evaluations:
        return (EMPTY,) * 6
    reaches = [evaluation.reach for evaluation in evaluations]
    over = estimate_cell(mean_interval(reaches), ".3g")
    tested = [evaluation for evaluation in evaluations if evaluation.cliff_tested]
    cliffs = [evaluation.cliff for evaluation in tested if evaluation.cliff is not None]
    return (
        Cell(f"{over.text}x", over.interval),
        Cell(f"{min(reaches):.3g}x"),
        Cell(f"{max(reaches):.3g}x"),
        _share(sum(held_length(one.counts) == max(one.lengths) for one in evaluations), len(evaluations)),
        _share(len(cliffs), len(tested)) if tested else EMPTY,
        Cell(f"{median(cliffs):g}" if cliffs else "none") if tested else EMPTY,
    )


def _failed(panel: Panel, arm: str) -> Cell:
    failed = panel.failed_to_learn(arm)
    return EMPTY if failed is None else Cell(f"{failed} of {len(panel.by_seed(arm, panel.training_length))}")


def _share(part: int, whole: int) -> Cell:
    low, high = binomial_interval(part, whole)
    return Cell(f"{part} of {whole}", f"{low:.0%}, {high:.0%}" if whole > 1 else "")


def run_table(evaluation: Evaluation) -> Table:
    """Return the accuracy of one run by length: all answers with their interval, and each named answer."""
    rows = []
    for count in evaluation.counts:
        length = Cell(f"{count.length / evaluation.training_length:.3g}x ({count.length})")
        answers = (percent(count.accuracy_of(name)) for name in evaluation.chance)
        rows.append((length, percent(count.accuracy, *count.interval), *answers, Cell(str(count.sequences))))
    chance = map(percent, (evaluation.chance_all, *evaluation.chance.values()))
    head = ("length", "all right", *evaluation.chance, "sequences")
    return Table("Accuracy by length [95% interval]", head, (*rows, (Cell("guessing"), *chance, Cell(""))))


def percent(value: float | None, low: float | None = None, high: float | None = None) -> Cell:
    """Return an accuracy, with its interval if there is one."""
    if value is None:
        return EMPTY
    return Cell(f"{value:.1%}", "" if low is None or high is None else f"{100 * low:.1f}, {100 * high:.1f}")


def estimate_cell(estimate: Estimate, form: str, scale: float = 1) -> Cell:
    """Return a mean with its interval, if there is one, in a format of numbers."""
    ends = [f"{scale * end:{form}}" for end in (estimate.low, estimate.high) if end is not None]
    return Cell(f"{scale * estimate.mean:{form}}", ", ".join(ends))


def accuracy_cell(panel: Panel, arm: str, length: int) -> Cell:
    """Return an arm's accuracy with its interval, and the number of seeds if not all of them were tested."""
    estimate = panel.estimate(arm, length)
    if estimate is None:
        return EMPTY
    fewer = f" ({estimate.seeds} seed{'s' * (estimate.seeds > 1)})" * (estimate.seeds < len(panel.finished[arm]))
    cell = percent(estimate.mean, estimate.low, estimate.high)
    return Cell(f"{cell.text}{fewer}", cell.interval)


def times(panel: Panel, length: int) -> str:
    """Return a length as a multiple of the training length: `3x (75)`."""
    return f"{length / panel.training_length:.3g}x ({length})"


def points(estimate: Estimate) -> Cell:
    """Return a difference of accuracies in percentage points."""
    return estimate_cell(estimate, "+.1f", 100)


def p_value(p: float) -> str:
    """Return a p value with three decimals, or one digit if it is smaller."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1g}"


def mean_note(panel: Panel) -> str:
    """Return what the intervals of a table or chart are over, with a warning if there are few seeds."""
    if panel.is_single:
        return "One seed: there are no error bars over seeds. Intervals: exact 95% over the tested sequences."
    fewest = min((len(seeds) for seeds in panel.finished.values() if len(seeds) > 1), default=FEW)
    few = f", which for {fewest} seeds is at most their range, and far too narrow" if fewest < FEW else ""
    return f"Means over seeds with 95% bootstrap intervals{few}; {MISSING} means not measured."
