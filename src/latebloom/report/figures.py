"""The pictures of a panel: accuracy by length, each answer alone, and the curves of training."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from latebloom.evaluation.result import CLAIM
from latebloom.report.charts import HOVER, Point, Spec, finished, guessing_levels, length_chart, run_color
from latebloom.report.panel import Panel
from latebloom.results.record import RunRecord


@dataclass(frozen=True)
class Figure:
    """A chart, the end of its file's name, and what a page says below it."""

    name: str
    chart: Spec
    note: str = ""


def accuracy_figure(panel: Panel) -> Figure:
    """All answers right, by length: the main picture."""
    return Figure("accuracy", _by_length(panel, None, f"{panel.study}: {panel.title}"))


def answer_figures(panel: Panel) -> list[Figure]:
    """The same for each named answer, where a task has several."""
    if len(panel.answers) < 2:
        return []
    return [Figure(f"accuracy-{name}", _by_length(panel, name, f"{name} alone")) for name in panel.answers]


def curve_figures(panel: Panel) -> list[Figure]:
    """Loss and held-out accuracy by step, a thin line a seed, with the switch marked."""
    measured = {(point.measure, point.length) for run in panel.runs for point in run.curve}
    start = panel.training_length
    wanted: list[tuple[str, int | None, str]] = [("loss", None, "loss")]
    for length in (start, CLAIM * start):
        wanted.append(("accuracy", length, f"all answers right at {length}"))
    if len(panel.answers) > 1:
        wanted += [(f"accuracy_{name}", CLAIM * start, f"{name} right at {CLAIM * start}") for name in panel.answers]
    return [
        Figure(f"curve-{measure}{'' if length is None else f'-{length}'}", _curves(panel, measure, length, title))
        for measure, length, title in wanted
        if (measure, length) in measured
    ]


def _by_length(panel: Panel, answer: str | None, title: str) -> Spec:
    points = []
    for arm in panel.shown:
        for length in panel.lengths:
            found = panel.estimate(arm, length, answer)
            if found is not None:
                over = f"{found.seeds} seed{'s' * (found.seeds > 1)}"
                points.append(Point(arm, length, found.mean, found.low, found.high, over))
    first = panel.evaluations[0]
    guessing = guessing_levels(first) if answer is None else {"guessing": first.chance[answer]}
    right = "all answers right" if answer is None else f"{answer} right"
    return length_chart(points, panel.training_length, guessing, title=title, right=right, names=panel.of_study)


def _curves(panel: Panel, measure: str, length: int | None, title: str) -> Spec:
    import altair as alt

    rows = [row for run in panel.runs if (row := _curve(run, measure, length))]
    values = [value for row in rows for value in row["value"]]
    shown = {row["run"] for row in rows}
    color = run_color(alt, [arm for arm in panel.arms if arm in shown], panel.of_study)
    x = alt.X("step:Q", title="step", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False, tickCount=6))
    if measure == "loss":
        scale = alt.Scale(type="log", nice=False) if min(values) > 0 else alt.Scale()
        y = alt.Y("value:Q", title="loss", scale=scale, axis=alt.Axis(tickCount=5))
    else:
        y = alt.Y("value:Q", title="accuracy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("seed:N"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("value:Q", title=title, format=".4f" if measure == "loss" else ".1%"),
    ]
    # A run's curve travels as two lists, a tenth of the size of a row a point.
    base = alt.Chart(alt.NamedData("points")).transform_flatten(["step", "value"])
    switches = {(run.arm, run.switch_step) for run in panel.runs if run.switch_step is not None}
    marks = [{"run": arm, "step": step, "what": "end of the delay"} for arm, step in sorted(switches)]
    switch = [alt.Tooltip("run:N"), alt.Tooltip("what:N", title="switch"), alt.Tooltip("step:Q", format=",")]
    rule = alt.Chart(alt.Data(values=marks)).mark_rule(strokeDash=[4, 3], strokeWidth=1.5)
    layers: list[Any] = [
        *([rule.encode(x=x, color=color, tooltip=switch)] if marks else []),  # Vega warns of a layer without data
        base.mark_line(strokeWidth=1.4, opacity=0.7).encode(x=x, y=y, color=color, detail="seed:N"),
        base.mark_point(size=60, opacity=0).encode(x=x, y=y, color=color, tooltip=tooltip).properties(name=HOVER),
    ]
    return finished(alt, layers, rows, title, height=220)


def _curve(run: RunRecord, measure: str, length: int | None) -> dict[str, Any] | None:
    # What is no number could not be drawn, nor be written as JSON.
    points = [p for p in run.curve if (p.measure, p.length) == (measure, length) and isfinite(p.value)]
    if not points:
        return None
    return {
        "run": run.arm,
        "seed": run.seed,
        "step": [point.step for point in points],
        "value": [float(f"{point.value:.4g}") for point in points],
    }
