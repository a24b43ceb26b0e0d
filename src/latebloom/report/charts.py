"""Charts as Vega-Lite specifications, and their conversion to PNG, SVG, PDF or HTML without a network."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from latebloom.engine.files import make_folder, write_file
from latebloom.errors import ConfigError, printable, refuse_unwritable, unknown
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.names import shown_name

Spec = dict[str, Any]
"""A chart, or a part of one, as Vega-Lite reads it."""
Row = dict[str, Any]
"""A row of a chart's data."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
COLORS = ["#d1495b", "#00798c", "#edae49", "#66a182", "#2e4057", "#8d6a9f", "#3b7dd8", "#a8581c", "#c2569b", "#7d8c1f"]
ON_DARK = ["#f0808e", "#48b5c7", "#edae49", "#8fcf9f", "#a9bedb", "#c9a6da", "#7db0ff", "#d9975f", "#ea94c8", "#bfcf63"]
"""The same hues for the dark theme."""
# Equal lines must not hide each other: the first is solid, and each later one has gaps through which it shows.
# Points shrink in the same order, each with its own shape.
DASHES = ([1, 0], [12, 8], [5, 5], [8, 4, 2, 6], [2, 8], [3, 9], [16, 6, 4, 6], [6, 14])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
SMALLEST_POINT, POINT, LARGEST_POINT, SHRINK = 20, 55, 160, 0.55
HOVER = "hover"
"""The name of an invisible layer that only shows tooltips."""


def plot(evaluations: Evaluation | Mapping[str, Evaluation], path: str | Path, *, title: str = "") -> Path:
    """Draw accuracy by length, a line for each named evaluation, into a .png, .svg, .pdf or .html file."""
    if not isinstance(evaluations, Evaluation | Mapping):
        raise ConfigError(f"plot: {evaluations!r} is neither an evaluation nor a mapping {{name: evaluation}}")
    named = {"accuracy": evaluations} if isinstance(evaluations, Evaluation) else dict(evaluations)
    for name, evaluation in named.items():
        if not isinstance(evaluation, Evaluation):
            raise ConfigError(f"plot: {name} is {evaluation!r}, not an evaluation; TrainedRun.load(folder) has one")
    save_chart(accuracy_chart(named, title), Path(path))
    return Path(path)


def save_chart(spec: Spec, *paths: Path) -> None:
    """Write a chart into files, each in the format of its suffix."""
    import vl_convert as convert

    from latebloom.report.page import chart_page

    svg = cache(lambda: as_svg(spec))
    content = {
        "png": lambda: convert.svg_to_png(svg(), ppi=144),
        "svg": lambda: svg().encode(),
        "pdf": lambda: convert.svg_to_pdf(svg()),
        "html": lambda: chart_page(spec).encode(),
    }
    for path in paths:
        form = path.suffix.lstrip(".").lower()
        if form not in content:
            raise unknown("plot", str(path), [f"*.{known}" for known in content])
        with refuse_unwritable("plot", path):
            make_folder(path.parent)
            write_file(path, content[form]())


def as_svg(spec: Spec) -> str:
    """Return a chart as SVG, without the layers that only show tooltips."""
    from vl_convert import vegalite_to_svg

    svg = vegalite_to_svg(spec | {"layer": [layer for layer in spec["layer"] if layer.get("name") != HOVER]})
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", svg)  # XML cannot have these in a name


def accuracy_chart(evaluations: Mapping[str, Evaluation], title: str = "") -> Spec:
    """Draw accuracy by length of several runs, with 95% intervals over the tested sequences."""
    if not evaluations:
        raise ConfigError("plot: there is no evaluation to draw")
    rows = [
        point(name, count.length, count.accuracy, *count.interval, f"{count.sequences} sequences")
        for name, evaluation in evaluations.items()
        for count in evaluation.counts
    ]
    first = next(iter(evaluations.values()))
    return length_chart(rows, first.training_length, guessing_levels(first), title)


def guessing_levels(evaluation: Evaluation) -> dict[str, float]:
    """Return the accuracy of guessing all answers, and of guessing one answer with all others right.

    An answer with several queries has no such level, because guessing all of them depends on the length.
    """
    levels = {"guessing all": evaluation.chance_all}
    if len(evaluation.chance) > 1:
        several = {name for count in evaluation.counts for name in count.queries}
        once = {name: level for name, level in evaluation.chance.items() if name not in several}
        levels |= {f"all but the {shown_name(name)} right": level for name, level in once.items()}
    return levels


def point(run: str, length: int, accuracy: float, low: float | None, high: float | None, over: str) -> Row:
    """Return a point of a line, with its interval if there is one; `over` says what the interval is over."""
    interval = "none" if low is None else f"{low:.1%} to {high:.1%}"
    place = {"run": shown_name(run), "length": length, "accuracy": accuracy}
    return place | {"low": low, "high": high, "over": over, "interval": interval}


def length_chart(
    points: Sequence[Row],
    training_length: int,
    guessing: Mapping[str, float],
    title: str,
    right: str = "all answers right",
    names: Sequence[str] = (),
) -> Spec:
    """Draw lines with bands, the training length, three times it, and the accuracy of guessing.

    `names` fixes the colours: a run has the same colour in all charts that are given the same names.
    """
    lengths = sorted({one["length"] for one in points})
    shown = list(dict.fromkeys(one["run"] for one in points))
    names = list(dict.fromkeys(map(shown_name, names))) or shown
    points = sorted(points, key=lambda one: names.index(one["run"]))  # also the order of drawing
    legend = legend_of(shown, symbolSize=130, symbolStrokeWidth=0)
    scale = {"type": "log", "domain": [lengths[0], lengths[-1]], "nice": False}
    axis = {"values": _ticks(lengths), "format": "d", "grid": False, "labelOverlap": True}
    x = quantity("length", title="length (items in a sequence)", scale=scale, axis=axis)
    color = by_run(names, legend)
    y = quantity("accuracy", title=right, scale={"domain": [0, 1]}, axis={"format": "%"})
    place = {"x": x, "y": y, "color": color}
    about = [nominal("interval", title="95% interval"), nominal("over")]
    dots: Spec = {"shape": by_run(names, legend, SHAPES), "size": quantity("size", scale=None)}
    dots["tooltip"] = [nominal("run"), quantity("length"), quantity("accuracy", format=".1%"), *about]
    band = {"x": x, "y": quantity("low", title=""), "y2": {"field": "high"}, "color": color}
    marks = {training_length: f"trained up to {training_length}", CLAIM * training_length: f"{CLAIM}x"}
    marks = {at: label for at, label in marks.items() if lengths[0] <= at <= lengths[-1]}
    chance: dict[float, str] = {}
    for label, level in sorted(guessing.items(), key=lambda item: item[1]):
        if not chance or level - max(chance) > 0.05:  # labels closer than this would overlap
            chance[level] = f"{label}: {level:.1%}"
    layers = [
        *guides("x", marks, {"strokeWidth": 1}, {}, {"y": {"value": -5}}),
        *guides("y", chance, {"strokeDash": [5, 4]}, {"align": "left", "dx": 6, "dy": -3}, {"x": {"value": 0}}),
        layer({"type": "area", "opacity": 0.2}, band, transform=[{"filter": "datum.low !== null"}]),
        layer({"type": "line", "strokeWidth": 2.5}, place | {"strokeDash": by_run(names, legend, DASHES)}),
        layer({"type": "point", "filled": True, "opacity": 0.9, "strokeWidth": 0}, place | dots),
    ]
    drawn = [name for name in names if name in shown]
    largest = min(LARGEST_POINT, POINT / SHRINK ** (len(drawn) - 1))  # a Vega scale would space the sizes evenly
    sizes = {name: max(SMALLEST_POINT, largest * SHRINK**i) for i, name in enumerate(drawn)}
    return layered(layers, [one | {"size": sizes[one["run"]]} for one in points], title)


def curves_chart(rows: list[Row], switches: list[Row], names: Sequence[str], title: str, is_loss: bool) -> Spec:
    """Draw a thin line by step for each row, with the switches marked. A row has lists `step` and `value`."""
    names = [shown_name(name) for name in names]
    shown = {row["run"] for row in rows}
    legend = legend_of([name for name in names if name in shown], symbolType="stroke", symbolStrokeWidth=4)
    color = by_run(names, legend)
    step = quantity("step", title="step", scale={"nice": False}, axis={"grid": False, "tickCount": 6})
    if is_loss:
        positive = all(value > 0 for row in rows for value in row["value"])
        scale = {"type": "log", "nice": False} if positive else {}
        y = quantity("value", title="loss", scale=scale, axis={"tickCount": 5})
    else:
        y = quantity("value", title="accuracy", scale={"domain": [0, 1]}, axis={"format": "%"})
    at_step, value = quantity("step", format=","), quantity("value", title=title, format=".4f" if is_loss else ".1%")
    place, flat = {"x": step, "y": y, "color": color}, [{"flatten": ["step", "value"]}]
    line, tooltip = {"detail": nominal("seed")}, {"tooltip": [nominal("run"), nominal("seed"), at_step, value]}
    layers = [
        # The opacity of the stroke alone: that of a whole line makes a PNG take seconds.
        layer({"type": "line", "strokeWidth": 1.4, "strokeOpacity": 0.7}, place | line, transform=flat),
        layer({"type": "point", "size": 60, "opacity": 0}, place | tooltip, name=HOVER, transform=flat),
    ]
    if switches:  # Vega warns about a layer without data
        mark = {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5}
        rule = {"x": step, "color": color, "tooltip": [nominal("run"), nominal("what", title="switch"), at_step]}
        layers.insert(0, layer(mark, rule, {"values": switches}))
    return layered(layers, rows, title, height=220)


def quantity(name: str, **more: Any) -> Spec:
    """Return a quantitative channel."""
    return {"field": name, "type": "quantitative", **more}


def nominal(name: str, **more: Any) -> Spec:
    """Return a nominal channel."""
    return {"field": name, "type": "nominal", **more}


def layer(mark: Spec, encoding: Spec, data: Spec | None = None, **more: Any) -> Spec:
    """Return a layer; its data are the chart's points unless given."""
    return {"data": data or {"name": "points"}, "mark": mark, "encoding": encoding, **more}


def layered(layers: list[Spec], points: list[Row], title: str, height: int = 320) -> Spec:
    """Return the layers as one chart in the common size and style."""
    heading = {"text": printable(title), "limit": {"expr": "width + 40"}}
    spec = {"$schema": SCHEMA, "config": chart_config(), "title": heading, "width": 560, "height": height}
    return spec | {"layer": layers, "datasets": {"points": points}}


def by_run(names: Sequence[str], legend: Spec, values: Sequence[Any] = ()) -> Spec:
    """Return a channel that distinguishes runs; the values are assigned in order, and again from the second on."""
    assigned = list(islice(chain(values[:1], cycle(values[1:])), len(names)))
    return nominal("run", scale={"domain": list(names)} | ({"range": assigned} if assigned else {}), legend=legend)


def legend_of(shown: Sequence[str], **symbols: Any) -> Spec:
    columns, limit = "width < 480 ? 2 : 4", "width < 480 ? width / 2 - 24 : width / 4 + 60"
    place = {"title": None, "values": list(shown), "orient": "top", "offset": 24, "symbolOpacity": 1}
    return place | {"columns": {"expr": columns}, "labelLimit": {"expr": limit}, **symbols}


def _ticks(lengths: list[int]) -> list[int]:
    """Return the tested lengths that are far enough apart to be readable."""
    kept = [lengths[0]]
    for length in lengths[1:]:
        if length / kept[-1] >= 1.19:
            kept.append(length)
    return kept


def guides(axis: str, labels: Mapping[Any, str], rule: Spec, text: Spec, place: Spec) -> list[Spec]:
    """Return labelled lines across the chart."""
    if not labels:  # Vega warns about a layer without data
        return []
    data, at = {"values": [{"at": at, "label": label} for at, label in labels.items()]}, {axis: quantity("at")}
    mark = {"type": "text", "style": "remark", "baseline": "bottom"} | text
    rule = {"type": "rule", "style": "guide"} | rule
    return [layer(rule, at, data), layer(mark, at | place | {"text": nominal("label")}, data)]


def chart_config(dark: bool = False) -> Spec:
    """Return Vega's configuration with the colours of page.css."""
    ink, soft, line = ("#e6e9ec", "#a7b1ba", "#3a424a") if dark else ("#1d2733", "#55616c", "#c9d0d6")
    ordinal = ["#97a9b8", "#f3f5f7"] if dark else ["#8896a3", "#12202e"]
    fonts = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    colors = {"labelColor": soft, "titleColor": soft, "domainColor": line, "tickColor": line, "gridColor": line}
    return {
        "background": "#14181c" if dark else "#ffffff",
        "view": {"strokeWidth": 0},
        "style": {"guide": {"color": soft, "strokeOpacity": 0.7}, "remark": {"color": soft, "fontSize": 11}},
        "range": {"category": ON_DARK if dark else COLORS, "ordinal": ordinal},
        "axis": fonts | colors | {"gridOpacity": 0.5},
        "legend": {"labelFontSize": 13, "labelColor": ink},
        "title": {"color": ink, "fontSize": 14, "fontWeight": 600, "anchor": "start"},
    }
