"""Arms side by side: the picture of a panel that has too many of them for lines to be told apart."""

from typing import Any

from latebloom.report.charts import Spec, finished
from latebloom.report.figures import Figure
from latebloom.report.panel import Panel
from latebloom.report.study_tables import times

MOST_LINES = 6
"""More arms than this are hard to follow as lines by length."""
ROW = 30
"""Pixels an arm takes."""


def arms_figure(panel: Panel) -> Figure | None:
    """Every arm at three times the training length and at the longest; None where lines by length can be read."""
    if len(panel.shown) <= MOST_LINES or panel.compared_length is None:
        return None
    lengths = list(dict.fromkeys((panel.compared_length, panel.lengths[-1])))
    rows = [row for length in lengths for arm in panel.shown for row in _rows(panel, arm, length)]
    return Figure("arms", _chart(rows, panel, lengths))


def _rows(panel: Panel, arm: str, length: int) -> list[dict[str, Any]]:
    """The mean over seeds, and a row for each seed."""
    mean = panel.estimate(arm, length)
    if mean is None:
        return []
    at = {"arm": arm, "at": times(panel, length)}
    interval = "none" if mean.low is None else f"{mean.low:.1%} to {mean.high:.1%}"
    middle = {"accuracy": mean.mean, "low": mean.low, "high": mean.high, "interval": interval, "seeds": mean.seeds}
    seeds = [at | {"seed": seed, "accuracy": value} for seed, value in panel.by_seed(arm, length).items()]
    return [at | middle, *seeds]


def _chart(rows: list[dict[str, Any]], panel: Panel, lengths: list[int]) -> Spec:
    import altair as alt

    near_and_far = [times(panel, length) for length in lengths]
    color = alt.Color(
        "at:N",
        scale=alt.Scale(domain=near_and_far),
        legend=alt.Legend(title=None, orient="top", symbolType="circle", symbolOpacity=1, symbolStrokeWidth=0),
    )
    percents = alt.Axis(format="%", tickCount=5)
    x = alt.X("accuracy:Q", title="all answers right", scale=alt.Scale(domain=[0, 1]), axis=percents)
    bare = alt.Axis(labelLimit=200, labelPadding=10, ticks=False, domain=False)
    y = alt.Y("arm:N", title=None, sort=list(panel.shown), axis=bare)
    offset = alt.YOffset("at:N", scale=alt.Scale(domain=near_and_far, paddingInner=0.2, paddingOuter=0.6))
    base = alt.Chart(alt.NamedData("points"))
    means, seeds = (base.transform_filter(f"{'!' * not_}isValid(datum.seed)") for not_ in (1, 0))
    of_mean = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("at:N", title="length"),
        alt.Tooltip("accuracy:Q", title="mean", format=".1%"),
        alt.Tooltip("interval:N", title="95% interval"),
        alt.Tooltip("seeds:Q"),
    ]
    of_seed = [alt.Tooltip("arm:N"), alt.Tooltip("seed:N"), alt.Tooltip("accuracy:Q", format=".1%")]
    layers: list[Any] = [
        seeds.mark_tick(thickness=1.5, size=9, opacity=0.55).encode(
            x=x, y=y, yOffset=offset, color=color, tooltip=of_seed
        ),
        means.transform_filter("datum.low !== null")
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q", title="all answers right"), x2="high:Q", y=y, yOffset=offset, color=color),
        means.mark_circle(size=70, opacity=1).encode(x=x, y=y, yOffset=offset, color=color, tooltip=of_mean),
    ]
    return finished(alt, layers, rows, f"{panel.study}: {panel.title}", height=ROW * len(panel.shown))
