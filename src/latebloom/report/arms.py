"""Arms side by side, near and far: where each stands, and what each change does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latebloom.report.charts import Spec, finished
from latebloom.report.compared import Compared
from latebloom.report.figures import Figure
from latebloom.report.panel import Panel
from latebloom.report.statistics import Estimate, mean_interval, paired
from latebloom.report.study_tables import times

MOST_LINES = 6
"""More arms than this are hard to follow as lines by length."""
ROW, LINE = 30, 12
"""Pixels that an arm takes, and a line of its name."""
MARKS = "A dot: the mean over seeds, with its 95% bootstrap interval. A tick: one seed."


@dataclass(frozen=True)
class _Measure:
    """What the dots show."""

    title: str
    name: str
    form: str
    """Of a number, as d3 writes it."""
    label: str
    """Of the axis, as an expression."""
    scale: Mapping[str, Any]
    has_zero: bool = False


ACCURACY = _Measure("all answers right", "accuracy", ".1%", "format(datum.value, '.0%')", {"domain": [0, 1]})
AHEAD = _Measure(
    "ahead, percentage points", "ahead", "+.1f", "datum.value ? format(datum.value, '+~g') : '0'", {"nice": True}, True
)


def is_crowded(panel: Panel) -> bool:
    """Whether there are too many arms for lines."""
    return len(panel.shown) > MOST_LINES


def arms_figure(panel: Panel) -> Figure | None:
    """Every arm and seed at three times the training length and at the longest; None where lines say as much."""
    if panel.is_single and not is_crowded(panel):
        return None
    rows = []
    for length in panel.near_and_far:
        for arm in panel.shown:
            if by_seed := panel.by_seed(arm, length):
                mean = mean_interval(by_seed.values())
                interval = "none" if mean.low is None else f"{mean.low:.1%} to {mean.high:.1%}"
                rows += _rows(arm, times(panel, length), mean, interval, by_seed)
    chart = _chart(rows, panel, panel.shown, f"{panel.study}: {panel.title}", ACCURACY)
    return Figure("arms", chart, MARKS)


def effects_figure(panel: Panel, compared: Compared) -> Figure | None:
    """How far each arm is ahead of those that it is held against, seed by seed; None where the study names none."""
    pairs = [(length, one) for length, several in compared.items() for one in several]
    if not panel.against or not pairs:
        return None
    rows, reference = [], panel.reference
    for length, one in pairs:
        name = one.first if one.second == reference else f"{one.first}\nagainst {one.second}"
        ahead = paired(*(panel.by_seed(arm, length) for arm in (one.first, one.second)))
        mean = one.difference
        interval = f"{100 * (mean.low or 0):+.1f} to {100 * (mean.high or 0):+.1f}".replace("-", "−")
        rows += _rows(name, times(panel, length), mean, interval, ahead, times_hundred=True)
    names = list(dict.fromkeys(row["arm"] for row in rows))
    rivals = ["the arm named under it"] * any(one.second != reference for _, one in pairs)
    rivals += [] if reference is None else [reference]
    note = f"What each change does: how far an arm is ahead of {', or of '.join(rivals)}, seed by seed. {MARKS}"
    title = f"{panel.study}, what each change does: {panel.title}"
    if reference is not None:
        title = f"{panel.study}, against {reference}{' unless named' * (len(rivals) > 1)}: {panel.title}"
    return Figure("effects", _chart(rows, panel, names, title, AHEAD), note)


def _rows(
    arm: str, at: str, mean: Estimate, interval: str, by_seed: Mapping[int, float], times_hundred: bool = False
) -> list[dict[str, Any]]:
    """The mean over seeds, and a row for each seed."""
    unit = 100 if times_hundred else 1
    low, high = (None if end is None else unit * end for end in (mean.low, mean.high))
    middle = {"value": unit * mean.mean, "low": low, "high": high, "interval": interval, "seeds": mean.seeds}
    place = {"arm": arm, "at": at}
    return [place | middle, *(place | {"seed": seed, "value": unit * value} for seed, value in by_seed.items())]


def _chart(rows: list[dict[str, Any]], panel: Panel, names: Sequence[str], title: str, shown: _Measure) -> Spec:
    import altair as alt

    near_and_far = [times(panel, length) for length in panel.near_and_far]
    color = alt.Color(
        "at:O",  # near and far are no arms, so they have none of their colours
        scale=alt.Scale(domain=near_and_far),
        legend=alt.Legend(title=None, orient="top", symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0),
    )
    axis = alt.Axis(tickCount=5, labelExpr=shown.label)
    x = alt.X("value:Q", title=shown.title, scale=alt.Scale(**shown.scale), axis=axis)
    # A name may have two lines: the arm, and what it is held against.
    of_two_lines = {"condition": {"test": "indexof(datum.label, '\\n') >= 0", "value": -LINE / 2}, "value": 0}
    bare = alt.Axis(
        labelLimit=200,
        labelPadding=10,
        labelExpr="split(datum.label, '\\n')",
        labelLineHeight=LINE,
        labelOffset=of_two_lines,
        ticks=False,
        domain=False,
    )
    y = alt.Y("arm:N", title=None, sort=list(names), axis=bare)
    offset = alt.YOffset("at:N", scale=alt.Scale(domain=near_and_far, paddingInner=0.2, paddingOuter=0.6))
    base = alt.Chart(alt.NamedData("points"))
    means, seeds = (base.transform_filter(f"{'!' * not_}isValid(datum.seed)") for not_ in (1, 0))
    of_mean = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("at:N", title="length"),
        alt.Tooltip("value:Q", title=f"mean {shown.name}", format=shown.form),
        alt.Tooltip("interval:N", title="95% interval"),
        alt.Tooltip("seeds:Q"),
    ]
    of_seed = [alt.Tooltip("arm:N"), alt.Tooltip("seed:N"), alt.Tooltip("value:Q", title=shown.name, format=shown.form)]
    zero = alt.Chart(alt.Data(values=[{"value": 0}])).mark_rule(style="guide", strokeWidth=1).encode(x="value:Q")
    layers: list[Any] = [
        *([zero] if shown.has_zero else []),
        seeds.mark_tick(thickness=1.5, size=9, opacity=0.55).encode(
            x=x, y=y, yOffset=offset, color=color, tooltip=of_seed
        ),
        means.transform_filter("datum.low !== null")
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q", title=shown.title), x2="high:Q", y=y, yOffset=offset, color=color),
        means.mark_circle(size=70, opacity=1).encode(x=x, y=y, yOffset=offset, color=color, tooltip=of_mean),
    ]
    return finished(alt, layers, rows, title, height=ROW * len(names))
