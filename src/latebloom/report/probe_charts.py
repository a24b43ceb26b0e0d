"""The chart of a probe, for one run or for several arms with intervals over seeds."""

from collections.abc import Iterator, Sequence
from typing import Any

from latebloom.probes.table import Chart
from latebloom.report.charts import (
    DASHES,
    Row,
    Spec,
    by_run,
    guides,
    layer,
    layered,
    legend_of,
    nominal,
    quantity,
)
from latebloom.report.statistics import Estimate, mean_interval
from latebloom.results.probes import Probed

MOST_POINTS, MOST_CELLS = 40, 16
"""Points of a line, and columns of a map, in a chart that averages neighbours."""
CELL = 20
"""The height of a row of a map, in pixels."""
BUTTON = 20
"""Pixels between the title of a map and its cells, so that the page's button for saving the chart covers none."""


def draw(chart: Chart, runs: Sequence[Probed], arms: Sequence[str]) -> list[tuple[str, Spec]]:
    """Return the charts with their titles: one for each value of `split`, and in maps one for each arm.

    An arm has the same colour in all charts that are given the same arms.
    """
    found: list[tuple[str, Spec]] = []
    for value in _splits(chart, runs):
        title = chart.title if value is None else f"{chart.title}: {value}"
        if chart.kind == "lines":
            points = list(_points(chart, runs, arms, value, MOST_POINTS))
            if points:
                found.append((title, _lines(chart, points, arms, title)))
            continue
        for arm in arms:
            cells = list(_points(chart, [run for run in runs if run.arm == arm], [arm], value, MOST_CELLS))
            if cells:
                named = f"{title} ({arm})" if len(arms) > 1 else title
                found.append((named, _map(chart, cells, named)))
    return found


def _splits(chart: Chart, runs: Sequence[Probed]) -> list[Any]:
    if chart.split is None:
        return [None]
    return list(dict.fromkeys(value for run in runs for value in _records(chart, run, None, chart.split)))


def _records(chart: Chart, run: Probed, split: Any, column: str | None = None) -> list[Any]:
    """Return the rows of a run that a chart draws, or one of their columns."""
    equal = {} if split is None or chart.split is None else {chart.split: split}
    equal |= {name: allowed[0] for name, allowed in chart.where.items() if len(allowed) == 1}
    rows = [
        row for row in run.table.records(**equal) if all(row[name] in allowed for name, allowed in chart.where.items())
    ]
    return rows if column is None else [row[column] for row in rows]


def _points(chart: Chart, runs: Sequence[Probed], arms: Sequence[str], split: Any, most: int) -> Iterator[Row]:
    """Yield the mean over seeds at each place, with its interval."""
    place_of = _bins(chart, runs, split, most)
    for arm in arms:
        by_place: dict[tuple[Any, str], dict[int, list[float]]] = {}
        for run in (run for run in runs if run.arm == arm):
            for row in _records(chart, run, split):
                is_in_time = chart.kind == "heat" or row[chart.x] >= 0  # a model that was measured once has no step
                if row[chart.value] is not None and is_in_time:
                    name = ".".join(str(row[column]) for column in chart.y)
                    seeds = by_place.setdefault((place_of(row[chart.x]), name), {})
                    seeds.setdefault(run.seed, []).append(row[chart.value])
        for (x, name), seeds in by_place.items():
            found = mean_interval(sum(values) / len(values) for values in seeds.values())
            yield {"run": arm, "x": x, "y": name, "value": found.mean, **_interval(found)}


def _bins(chart: Chart, runs: Sequence[Probed], split: Any, most: int) -> Any:
    """Return a function from a place to the place at which it is drawn: the last of its neighbours."""
    places = sorted({x for run in runs for x in _records(chart, run, split, chart.x)})
    if not chart.smooth or len(places) <= most:
        return lambda x: x
    size = -(-len(places) // most)
    ends = {x: places[min(len(places) - 1, (i // size + 1) * size - 1)] for i, x in enumerate(places)}
    return ends.__getitem__


def _interval(found: Estimate) -> Row:
    if found.low is None or found.high is None:
        return {"low": None, "high": None, "interval": "none", "over": "1 run"}
    interval = f"{found.low:.3g} to {found.high:.3g}"
    return {"low": found.low, "high": found.high, "interval": interval, "over": f"{found.seeds} seeds"}


def _lines(chart: Chart, points: list[Row], arms: Sequence[str], title: str) -> Spec:
    shown = [arm for arm in arms if any(point["run"] == arm for point in points)]
    legend = legend_of(shown, symbolType="stroke", symbolStrokeWidth=4)
    places = sorted({point["x"] for point in points})
    scale: Spec = {"type": "log", "nice": False} if chart.log and places[0] > 0 else {"nice": False}
    ticks = {"values": places} if chart.log and len(places) <= 8 else {"tickCount": 6}
    x = quantity("x", title=chart.x_title or chart.x, scale=scale, axis={"grid": False, "format": "d", **ticks})
    domain = {"domain": list(chart.bounds)} if chart.bounds else {"zero": chart.level == 0.0}
    y = quantity("value", title=chart.value_title or chart.value.replace("_", " "), scale=domain)
    color = by_run(arms, legend)
    place = {"x": x, "y": y, "color": color}
    band = {"x": x, "y": quantity("low", title=""), "y2": {"field": "high"}, "color": color}
    about = [nominal("run"), quantity("x", title=chart.x), quantity("value", format=".3f")]
    tooltip = {"tooltip": [*about, nominal("interval", title="95% interval"), nominal("over")]}
    dashes = {"strokeDash": by_run(arms, legend, DASHES)}
    level = {} if chart.level is None else {chart.level: ""}
    layers = guides("y", level, {"strokeDash": [5, 4]}, {}, {"x": {"value": 0}})
    if any(point["low"] is not None for point in points):
        layers.append(layer({"type": "area", "opacity": 0.2}, band, transform=[{"filter": "datum.low !== null"}]))
    layers += [
        layer({"type": "line", "strokeWidth": 2}, place | dashes),
        layer({"type": "point", "filled": True, "size": 30, "opacity": 0.9}, place | tooltip),
    ]
    return layered(layers, points, title, height=240)


def _map(chart: Chart, cells: list[Row], title: str) -> Spec:
    names = list(dict.fromkeys(cell["y"] for cell in cells))
    columns = sorted({cell["x"] for cell in cells})
    x = {"field": "x", "type": "ordinal", "title": chart.x_title or chart.x, "sort": columns, "axis": {"labelAngle": 0}}
    y = nominal("y", title=None, sort=names, axis={"labelLimit": 260})
    is_signed = chart.bounds is not None and chart.bounds[0] < 0
    scheme = {"scheme": "redblue" if is_signed else "blues"}
    scale = scheme | ({"domain": list(chart.bounds)} if chart.bounds else {})
    color = quantity("value", scale=scale, legend=None)
    low, high = chart.bounds or (min(c["value"] for c in cells), max(c["value"] for c in cells))
    place = {"x": x, "y": y}
    about = [nominal("y", title="part"), {"field": "x", "type": "ordinal", "title": chart.x}]
    tooltip = [*about, quantity("value", format=".3f"), nominal("interval", title="95% interval"), nominal("over")]
    # Numbers on dark cells are white: those near the end of the colours, or near both ends if they have a middle.
    share = f"(datum.value - {low}) / {max(high - low, 1e-12)}"
    is_dark = f"abs({share} - 0.5) > 0.33" if is_signed else f"{share} > 0.55"
    ink = {"condition": {"test": is_dark, "value": "#ffffff"}, "value": "#1d2733"}
    layers = [
        layer({"type": "rect"}, place | {"color": color, "tooltip": tooltip}),
        layer({"type": "text", "fontSize": 11}, place | {"text": quantity("value", format=".2f"), "color": ink}),
    ]
    spec = layered(layers, cells, title, height=CELL * len(names))
    spec["title"]["offset"] = BUTTON
    return spec
