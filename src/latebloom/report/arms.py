"""Arms side by side, near and far: where each stands, and what each change does."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from latebloom.report.charts import Spec, finished
from latebloom.report.figures import Figure
from latebloom.report.panel import Panel
from latebloom.report.statistics import mean_interval
from latebloom.report.study_tables import times

MOST_LINES = 6
"""More arms than this are hard to follow as lines by length."""
ROW, LINE = 30, 12
"""Pixels that an arm takes, and a line of its name."""
MARKS = "A dot: the mean over seeds, with its 95% bootstrap interval. A tick:"
LEFT_OF_ZERO = 'datum.value < 0 ? "−" : datum.value > 0 ? "+" : ""'
"""The sign before the label of a difference."""


def is_crowded(panel: Panel) -> bool:
    """Whether there are too many arms for lines."""
    return len(panel.shown) > MOST_LINES


def arms_figure(panel: Panel) -> Figure | None:
    """Every arm and seed at three times the training length and at the longest; None where lines say as much."""
    if panel.is_single and not is_crowded(panel):
        return None
    by_arm = {(arm, length): panel.by_seed(arm, length) for length in panel.near_and_far for arm in panel.shown}
    rows = [row for place, by_seed in by_arm.items() for row in _rows(panel, *place, by_seed)]
    chart = _chart(rows, panel, panel.shown, f"{panel.study}: {panel.title}", "all answers right")
    return Figure("arms", chart, f"{MARKS} one seed.")


def effects_figure(panel: Panel) -> Figure | None:
    """How far each arm is ahead of those that it is held against, seed by seed; None where the study names none."""
    usual = Counter(other for others in panel.against.values() for other in others).most_common(1)
    rows: list[dict[str, Any]] = []
    for arm, others in panel.against.items():
        for other in others:
            name = arm if other == usual[0][0] else f"{arm}\nagainst {other}"
            for length in panel.near_and_far:
                first, second = (panel.by_seed(one, length) for one in (arm, other))
                ahead = {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())}
                rows += _rows(panel, name, length, ahead)
    if not rows:
        return None
    names = list(dict.fromkeys(row["arm"] for row in rows))
    title = f"{panel.study}, what each change does: {panel.title}"
    note = (
        "What each change does: how far an arm is ahead of the one that stands below it, or else of "
        f"{usual[0][0]}, seed by seed. {MARKS} one seed that both have."
    )
    chart = _chart(rows, panel, names, title, "ahead, percentage points", is_difference=True)
    return Figure("effects", chart, note)


def _rows(panel: Panel, arm: str, length: int, by_seed: Mapping[int, float]) -> list[dict[str, Any]]:
    """The mean over seeds, and a row for each seed."""
    if not by_seed:
        return []
    mean = mean_interval(by_seed.values())
    at = {"arm": arm, "at": times(panel, length)}
    interval = "none" if mean.low is None else f"{mean.low:.1%} to {mean.high:.1%}"
    middle = {"value": mean.mean, "low": mean.low, "high": mean.high, "interval": interval, "seeds": mean.seeds}
    return [at | middle, *(at | {"seed": seed, "value": value} for seed, value in by_seed.items())]


def _chart(
    rows: list[dict[str, Any]], panel: Panel, names: Sequence[str], title: str, what: str, is_difference: bool = False
) -> Spec:
    import altair as alt

    near_and_far = [times(panel, length) for length in panel.near_and_far]
    color = alt.Color(
        "at:N",
        scale=alt.Scale(domain=near_and_far),
        legend=alt.Legend(title=None, orient="top", symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0),
    )
    if is_difference:
        axis = alt.Axis(tickCount=5, labelExpr=f"({LEFT_OF_ZERO}) + format(abs(100 * datum.value), '.3~g')")
        scale = alt.Scale(nice=True)
    else:
        axis, scale = alt.Axis(format="%", tickCount=5), alt.Scale(domain=[0, 1])
    x = alt.X("value:Q", title=what, scale=scale, axis=axis)
    lines = "split(datum.label, '\\n')"
    of_two_lines = {"condition": {"test": "indexof(datum.label, '\\n') >= 0", "value": -LINE / 2}, "value": 0}
    bare = alt.Axis(
        labelLimit=200,
        labelPadding=10,
        labelExpr=lines,
        labelLineHeight=LINE,
        labelOffset=of_two_lines,
        ticks=False,
        domain=False,
    )
    y = alt.Y("arm:N", title=None, sort=list(names), axis=bare)
    offset = alt.YOffset("at:N", scale=alt.Scale(domain=near_and_far, paddingInner=0.2, paddingOuter=0.6))
    base = alt.Chart(alt.NamedData("points"))
    means, seeds = (base.transform_filter(f"{'!' * not_}isValid(datum.seed)") for not_ in (1, 0))
    shown = "+.1%" if is_difference else ".1%"
    of_mean = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("at:N", title="length"),
        alt.Tooltip("value:Q", title="mean", format=shown),
        alt.Tooltip("interval:N", title="95% interval"),
        alt.Tooltip("seeds:Q"),
    ]
    title_of_seed = "ahead" if is_difference else "accuracy"
    of_seed = [alt.Tooltip("arm:N"), alt.Tooltip("seed:N"), alt.Tooltip("value:Q", title=title_of_seed, format=shown)]
    zero = alt.Chart(alt.Data(values=[{"value": 0}])).mark_rule(style="guide", strokeWidth=1).encode(x="value:Q")
    layers: list[Any] = [
        *([zero] if is_difference else []),
        seeds.mark_tick(thickness=1.5, size=9, opacity=0.55).encode(
            x=x, y=y, yOffset=offset, color=color, tooltip=of_seed
        ),
        means.transform_filter("datum.low !== null")
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q", title=what), x2="high:Q", y=y, yOffset=offset, color=color),
        means.mark_circle(size=70, opacity=1).encode(x=x, y=y, yOffset=offset, color=color, tooltip=of_mean),
    ]
    return finished(alt, layers, rows, title, height=ROW * len(names))
