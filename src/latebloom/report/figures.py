"""The figures of a panel: accuracy by length, arms side by side, effects of changes, and training curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from statistics import median_low

from latebloom.evaluation.result import CLAIM
from latebloom.report import charts
from latebloom.report.charts import Row, Spec, layer, nominal, quantity
from latebloom.report.compared import Compared
from latebloom.report.losses import NOTE, loss_chart
from latebloom.report.names import shown_name
from latebloom.report.panel import Panel
from latebloom.report.statistics import Estimate, mean_interval, paired
from latebloom.report.study_tables import mean_note, times
from latebloom.results.record import RunRecord

MOST_LINES = 6
"""More arms than this are hard to follow as lines by length."""
ROW, LINE = 30, 12
"""Height in pixels of an arm, and of a line of its name."""
DOTS_NOTE = "Dots: means over seeds with 95% bootstrap intervals. Ticks: single seeds."
MANY_NOTE = "Dots: means over seeds with 95% bootstrap intervals. Ticks: the least, the quartiles and the largest seed."
CURVES_NOTE = (
    "Dashed vertical lines: the switch, which ends the delay. Accuracy is measured on held-out sequences, and includes "
    "answers that are not in the loss yet."
)
MOST_CURVES, MOST_TICKS = 120, 60
"""Of more runs than this, training curves are means over the seeds of an arm; of more seeds of an arm than this, ticks
are at the quartiles."""


@dataclass(frozen=True)
class Figure:
    """A chart, the end of its file name, its caption, and the fold of the page in which it stands."""

    name: str
    chart: Spec
    note: str = ""
    fold: str = ""


def all_figures(panel: Panel, compared: Compared) -> list[Figure]:
    """Return the figures of a panel in the order of the page."""
    if not panel.shown:
        return curve_figures(panel)
    lines, dots = accuracy_figure(panel), [arms_figure(panel), effects_figure(panel, compared)]
    found = [*dots, lines] if lines.fold else [lines, *dots]
    if panel.has_losses:
        found.insert(0, Figure("loss", loss_chart(panel), NOTE))
    return [*(figure for figure in found if figure), *answer_figures(panel), *curve_figures(panel)]


def accuracy_figure(panel: Panel) -> Figure:
    """Return the main figure: the share of sequences with all answers right, by length."""
    sequences = sorted({count.sequences for one in panel.evaluations for count in one.counts})
    tested = " to ".join(f"{count:,}" for count in dict.fromkeys((sequences[0], sequences[-1])))
    note = f"{mean_note(panel)} {tested} sequences for each length and seed. Points are tested lengths."
    chart = _by_length(panel, None, f"{panel.study}: {panel.title}")
    return Figure("accuracy", chart, note, "By length" if len(panel.shown) > MOST_LINES else "")


def answer_figures(panel: Panel) -> list[Figure]:
    """Return accuracy by length of each named answer, if the task has several."""
    names = panel.answers if len(panel.answers) > 1 else []
    fold = "Each answer alone"
    return [
        Figure(f"accuracy-{name}", _by_length(panel, name, f"{shown_name(name)} alone"), fold=fold) for name in names
    ]


def _by_length(panel: Panel, answer: str | None, title: str) -> Spec:
    points = []
    for arm in panel.shown:
        for length in panel.lengths:
            if (found := panel.estimate(arm, length, answer)) is not None:
                over = "sequences of one seed" if panel.is_single else f"{found.seeds} seed{'s' * (found.seeds > 1)}"
                points.append(charts.point(arm, length, found.mean, found.low, found.high, over))
    first = panel.evaluations[0]
    guessing = charts.guessing_levels(first) if answer is None else {"guessing": first.chance[answer]}
    right = f"{shown_name(answer or 'all answers')} right"
    return charts.length_chart(points, panel.training_length, guessing, title, right, panel.of_study)


def curve_figures(panel: Panel) -> list[Figure]:
    """Return loss and held-out accuracy by step, a thin line for each seed, with the switch marked."""
    start, far = panel.training_length, CLAIM * panel.training_length
    wanted: dict[tuple[str, int | None], str] = {("loss", None): "loss"}
    wanted |= {("accuracy", length): f"all answers right at {length}" for length in (start, far)}
    if len(panel.answers) > 1:
        wanted |= {(f"accuracy_{name}", far): f"{name} right at {far}" for name in panel.answers}
    is_many = len(panel.runs) > MOST_CURVES
    marks = [{"run": shown_name(arm), "step": step, "what": "end of the delay"} for arm, step in _switches(panel)]
    found: dict[tuple[str, int | None], list[Row]] = {}
    for arm in panel.arms:
        runs = [(run.seed, _curves(run)) for run in panel.runs if run.arm == arm]
        for key in wanted:
            curves = {seed: curves[key] for seed, curves in runs if key in curves}
            if is_many and curves:
                curves = {f"mean of {len(curves)} seeds": mean_curve(list(curves.values()))}
            found.setdefault(key, []).extend(_curve(arm, seed, curve) for seed, curve in curves.items())
    figures = []
    for (measure, length), title in wanted.items():
        if rows := found.get((measure, length)):
            chart = charts.curves_chart(rows, marks, panel.of_study, title, is_loss=measure == "loss")
            name = f"curve-{measure}{'' if length is None else f'-{length}'}"
            note = f"{'The mean over the seeds of each arm' if is_many else 'A line for each seed'}. {CURVES_NOTE}"
            figures.append(Figure(name, chart, note, "Training curves"))
    return figures


Curve = Mapping[int, float]
"""Values by step."""


def _curves(run: RunRecord) -> dict[tuple[str, int | None], dict[int, float]]:
    """Return the curves of a run by measure and length; JSON has no NaN."""
    found: dict[tuple[str, int | None], dict[int, float]] = {}
    for measure, length, step, value in run.curve:
        if isfinite(value):
            found.setdefault((measure, length), {})[step] = value
    return found


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean at each step over the curves that have a value there."""
    sums: dict[int, list[float]] = {}
    for curve in curves:
        for step, value in curve.items():
            sums.setdefault(step, []).append(value)
    return {step: fsum(values) / len(values) for step, values in sorted(sums.items())}


def _curve(arm: str, seed: int | str, curve: Curve) -> Row:
    """Return a curve as two lists, a tenth of the size of a row for each point."""
    values = [float(f"{value:.4g}") for value in curve.values()]
    return {"run": shown_name(arm), "seed": seed, "step": list(curve), "value": values}


def _switches(panel: Panel) -> list[tuple[str, int]]:
    """Return the switch steps of each arm; of many runs, the median of each arm."""
    steps: dict[str, list[int]] = {}
    for run in panel.runs:
        if run.switch_step is not None:
            steps.setdefault(run.arm, []).append(run.switch_step)
    if len(panel.runs) > MOST_CURVES:
        steps = {arm: [median_low(several)] for arm, several in steps.items()}
    return sorted({(arm, step) for arm, several in steps.items() for step in several})


def arms_figure(panel: Panel) -> Figure | None:
    """Return every arm and seed at the compared length and at the longest; None if the lines show as much."""
    if panel.is_single and len(panel.shown) <= MOST_LINES:
        return None
    rows = []
    for length in panel.near_and_far:
        for arm in panel.shown:
            if by_seed := panel.by_seed(arm, length):
                rows += _dots(shown_name(arm), times(panel, length), mean_interval(by_seed.values()), by_seed)
    axis = {"tickCount": 5, "labelExpr": "format(datum.value, '.0%')"}
    x = quantity("value", title="all answers right", scale={"domain": [0, 1]}, axis=axis)
    names = [shown_name(arm) for arm in panel.shown]
    chart = _dots_chart(rows, panel, names, f"{panel.study}: {panel.title}", x, "accuracy", ".1%")
    return Figure("arms", chart, _dots_note(panel))


def _dots_note(panel: Panel) -> str:
    return MANY_NOTE if max(map(len, panel.finished.values())) > MOST_TICKS else DOTS_NOTE


def effects_figure(panel: Panel, compared: Compared) -> Figure | None:
    """Return the paired difference of each arm and its baselines; None if the study names no baselines."""
    pairs = [(length, one) for length, several in compared.items() for one in several]
    if not panel.against or not pairs:
        return None
    rows, reference = [], panel.reference
    for length, one in pairs:
        first, second = shown_name(one.first), shown_name(one.second)
        name = first if one.second == reference else f"{first}\nagainst {second}"
        differences = paired(*(panel.by_seed(arm, length) for arm in (one.first, one.second)))
        rows += _dots(name, times(panel, length), one.difference, differences, in_points=True)
    baselines = ["the arm named under it"] * any(one.second != reference for _, one in pairs)
    baselines += [] if reference is None else [reference]
    note = f"Paired difference of each arm and its baseline ({' or '.join(baselines)}). {_dots_note(panel)}"
    unless = " unless named" * (len(baselines) > 1)
    what = "effects of changes" if reference is None else f"against {reference}{unless}"
    axis = {"tickCount": 5, "labelExpr": "datum.value ? format(datum.value, '+~g') : '0'"}
    x = quantity("value", title="difference, percentage points", scale={"nice": True}, axis=axis)
    names = list(dict.fromkeys(row["arm"] for row in rows))
    chart = _dots_chart(rows, panel, names, f"{panel.study}, {what}: {panel.title}", x, "difference", "+.1f")
    zero = {"type": "rule", "style": "guide", "strokeWidth": 1}
    chart["layer"].insert(0, layer(zero, {"x": quantity("value")}, {"values": [{"value": 0}]}))
    return Figure("effects", chart, note)


def _dots(arm: str, at: str, mean: Estimate, by_seed: Mapping[int, float], in_points: bool = False) -> list[Row]:
    """Return a row for the mean over seeds, and one for each seed."""
    unit = 100 if in_points else 1
    low, high = (None if end is None else unit * end for end in (mean.low, mean.high))
    interval = "none" if low is None else f"{low:+.1f} to {high:+.1f}" if in_points else f"{low:.1%} to {high:.1%}"
    middle = {"value": unit * mean.mean, "low": low, "high": high, "interval": interval, "seeds": mean.seeds}
    place = {"arm": arm, "at": at}
    single: Mapping[int | str, float] = {**by_seed}
    if len(by_seed) > MOST_TICKS:
        ordered = sorted(by_seed.values())
        names = ("least", "first quartile", "median", "third quartile", "largest")
        single = {name: ordered[round(i * (len(ordered) - 1) / 4)] for i, name in enumerate(names)}
    return [place | middle, *(place | {"seed": seed, "value": unit * value} for seed, value in single.items())]


def _dots_chart(rows: list[Row], panel: Panel, names: list[str], title: str, x: Spec, measure: str, form: str) -> Spec:
    """Draw a row for each arm, with a dot, an interval and ticks near and far."""
    near_and_far = {"domain": [times(panel, length) for length in panel.near_and_far]}
    legend = {"title": None, "orient": "top", "symbolType": "circle", "symbolOpacity": 1, "symbolStrokeWidth": 0}
    # An ordinal scale, because lengths must not have the colours of arms.
    color = {"field": "at", "type": "ordinal", "scale": near_and_far, "legend": legend}
    # A name may have two lines: the arm and its baseline.
    two_lines = {"condition": {"test": "indexof(datum.label, '\\n') >= 0", "value": -LINE / 2}, "value": 0}
    axis = {"labelLimit": 200, "labelPadding": 10, "labelExpr": "split(datum.label, '\\n')", "labelLineHeight": LINE}
    axis |= {"labelOffset": two_lines, "ticks": False, "domain": False}
    offset = nominal("at", scale=near_and_far | {"paddingInner": 0.2, "paddingOuter": 0.6})
    place = {"y": nominal("arm", title=None, sort=names, axis=axis), "yOffset": offset, "color": color}
    seeds, means = [{"filter": "isValid(datum.seed)"}], [{"filter": "!isValid(datum.seed)"}]
    of_mean = [nominal("arm"), nominal("at", title="length"), quantity("value", title=f"mean {measure}", format=form)]
    of_mean += [nominal("interval", title="95% interval"), quantity("seeds")]
    of_seed = [nominal("arm"), nominal("seed"), quantity("value", title=measure, format=form)]
    tick = {"type": "tick", "thickness": 1.5, "size": 9, "opacity": 0.55}
    ends = {"x": quantity("low", title=x["title"]), "x2": {"field": "high"}}
    layers = [
        layer(tick, place | {"x": x, "tooltip": of_seed}, transform=seeds),
        layer({"type": "rule", "strokeWidth": 2}, place | ends, transform=[*means, {"filter": "datum.low !== null"}]),
        layer({"type": "circle", "size": 70, "opacity": 1}, place | {"x": x, "tooltip": of_mean}, transform=means),
    ]
    return charts.layered(layers, rows, title, height=ROW * len(names))
