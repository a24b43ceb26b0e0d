"""Accuracy by length as a chart: PNG, SVG, PDF or a page of its own, all made offline."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from latebloom.errors import ConfigError, unknown
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.theme import chart_config

Spec = dict[str, Any]
"""A chart as Vega-Lite reads it."""
FORMATS = ("png", "svg", "pdf", "html")
# Equal lines must not hide each other: the first is solid and each after it leaves gaps in which the ones below show;
# points grow smaller in the same order, each of a shape of its own.
DASHES = ([1, 0], [12, 8], [5, 5], [8, 4, 2, 6], [2, 8], [3, 9], [16, 6, 4, 6], [6, 14])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
SMALLEST_POINT, POINT, LARGEST_POINT, SHRINK = 20, 55, 160, 0.55
HOVER = "hover"
"""The name of a layer that is not to be seen, only to answer the pointer."""


def plot(evaluations: Evaluation | Mapping[str, Evaluation], path: str | Path, *, title: str = "") -> Path:
    """Draw accuracy by length, a line for each named evaluation, into a .png, .svg, .pdf or .html file."""
    if not isinstance(evaluations, Evaluation | Mapping):
        raise ConfigError(
            f"plot: {evaluations!r} is neither an evaluation nor a row of named ones, {{name: evaluation}}"
        )
    named = {"accuracy": evaluations} if isinstance(evaluations, Evaluation) else dict(evaluations)
    for name, evaluation in named.items():
        if not isinstance(evaluation, Evaluation):
            raise ConfigError(f"plot: {name} is {evaluation!r}, not an evaluation; TrainedRun.load(folder) has one")
    save_chart(accuracy_chart(named, title=title), Path(path))
    return Path(path)


def save_chart(spec: Spec, *paths: Path) -> None:
    """Write a chart into files, each in the format that its name ends in."""
    svg = ""
    for path in paths:
        form = path.suffix.lstrip(".").lower()
        if form not in FORMATS:
            raise unknown("plot", str(path), [f"*.{known}" for known in FORMATS])
        if form != "html":
            svg = svg or as_svg(spec)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_converted(spec, svg, form))
        except OSError as error:
            raise ConfigError(f"plot: {path} cannot be written ({error.strerror})") from None


def as_svg(spec: Spec) -> str:
    """A chart as a picture; what only answers the pointer is left out."""
    from vl_convert import vegalite_to_svg

    return vegalite_to_svg(spec | {"layer": [layer for layer in spec["layer"] if layer.get("name") != HOVER]})


def _converted(spec: Spec, svg: str, form: str) -> bytes:
    import vl_convert as convert

    from latebloom.report.page import chart_page

    if form == "html":
        return chart_page(spec).encode()
    if form == "svg":
        return svg.encode()
    return convert.svg_to_pdf(svg) if form == "pdf" else convert.svg_to_png(svg, ppi=144)


def accuracy_chart(evaluations: Mapping[str, Evaluation], *, title: str = "") -> Spec:
    """Accuracy by length of several runs, with 95% intervals over the tested sequences."""
    if not evaluations:
        raise ConfigError("plot: there is no evaluation to draw")
    rows = [
        Point(name, count.length, count.accuracy, *count.interval, f"{count.sequences} sequences")
        for name, evaluation in evaluations.items()
        for count in evaluation.counts
    ]
    first = next(iter(evaluations.values()))
    return length_chart(rows, first.training_length, guessing_levels(first), title=title)


def guessing_levels(evaluation: Evaluation) -> dict[str, float]:
    """The accuracy of guessing every answer, and of guessing one and knowing the rest."""
    levels = {"guessing all": evaluation.chance_all}
    if len(evaluation.chance) > 1:
        levels |= {f"all but the {name} right": level for name, level in evaluation.chance.items()}
    return levels


@dataclass(frozen=True)
class Point:
    """One point of a line, with its interval if there is one."""

    run: str
    length: int
    accuracy: float
    low: float | None
    high: float | None
    over: str
    """What the interval is over."""

    def to_row(self) -> dict[str, Any]:
        interval = "none" if self.low is None else f"{self.low:.1%} to {self.high:.1%}"
        return asdict(self) | {"interval": interval}


def length_chart(
    points: Sequence[Point],
    training_length: int,
    guessing: Mapping[str, float],
    *,
    title: str = "",
    right: str = "all answers right",
    names: Sequence[str] = (),
) -> Spec:
    """Lines with bands, the training length, three times it, and guessing.

    `names` fixes the colours: a run has the same one in every chart that is given the same names.
    """
    import altair as alt

    lengths = sorted({point.length for point in points})
    shown = list(dict.fromkeys(point.run for point in points))
    names = list(names or shown)
    points = sorted(points, key=lambda point: names.index(point.run))  # also the order of drawing
    legend = _legend(alt, shown, symbolSize=130, symbolStrokeWidth=0)
    color = _by_run(alt, alt.Color, names, legend)
    dash, shape = _by_run(alt, alt.StrokeDash, names, legend, DASHES), _by_run(alt, alt.Shape, names, legend, SHAPES)
    x = alt.X(
        "length:Q",
        title="length (items in a sequence)",
        scale=alt.Scale(type="log", domain=[lengths[0], lengths[-1]], nice=False),
        axis=alt.Axis(values=_ticks(lengths), format="d", grid=False, labelOverlap=True),
    )
    y = alt.Y("accuracy:Q", title=right, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("length:Q"),
        alt.Tooltip("accuracy:Q", format=".1%"),
        alt.Tooltip("interval:N", title="95% interval"),
        alt.Tooltip("over:N"),
    ]
    base = alt.Chart(alt.NamedData("points"))
    layers: list[Any] = [
        *_marks(alt, training_length, lengths),
        *_guessing(alt, guessing, lengths),
        base.transform_filter("datum.low !== null")
        .mark_area(opacity=0.2)
        .encode(x=x, y=alt.Y("low:Q", title=""), y2="high:Q", color=color),
        base.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=color, strokeDash=dash),
        base.mark_point(filled=True, opacity=0.9, strokeWidth=0).encode(
            x=x, y=y, color=color, shape=shape, size=alt.Size("size:Q", scale=None), tooltip=tooltip
        ),
    ]
    sizes = _sizes([name for name in names if name in shown])
    return finished(alt, layers, [point.to_row() | {"size": sizes[point.run]} for point in points], title)


def run_color(alt: Any, shown: Sequence[str], names: Sequence[str]) -> Any:
    """A colour for each of the names, and a legend of those that are shown."""
    return _by_run(alt, alt.Color, names, _legend(alt, shown, symbolType="stroke", symbolStrokeWidth=4))


def _by_run(alt: Any, channel: Any, names: Sequence[str], legend: Any, values: Sequence[Any] = ()) -> Any:
    """A channel that tells runs apart; values are dealt out in order, and again from the second on."""
    dealt = list(islice(chain(values[:1], cycle(values[1:])), len(names)))
    scale = alt.Scale(domain=list(names), range=dealt) if dealt else alt.Scale(domain=list(names))
    return channel("run:N", scale=scale, legend=legend)


def _legend(alt: Any, shown: Sequence[str], **symbols: Any) -> Any:
    return alt.Legend(
        title=None,
        values=list(shown),
        orient="top",
        offset=24,
        symbolOpacity=1,
        columns=alt.ExprRef("width < 480 ? 2 : 4"),
        labelLimit=alt.ExprRef("width < 480 ? width / 2 - 24 : width / 4 + 60"),
        **symbols,
    )


def _sizes(drawn: Sequence[str]) -> dict[str, float]:
    """The size of each run's points, in the order of drawing; in the data, for a scale would space them evenly."""
    largest = min(LARGEST_POINT, POINT / SHRINK ** (len(drawn) - 1))
    return {name: max(SMALLEST_POINT, largest * SHRINK**i) for i, name in enumerate(drawn)}


def finished(alt: Any, layers: Sequence[Any], points: list[dict[str, Any]], title: str, height: int = 320) -> Spec:
    """The layers as one chart, in the size and type that all charts have; `points` is what NamedData("points") is."""
    heading = alt.TitleParams(title, limit=alt.ExprRef("width + 40"))
    chart = alt.layer(*layers).properties(width=560, height=height, title=heading).configure(**chart_config())
    return chart.to_dict() | {"datasets": {"points": points}}  # altair would copy and check every point


def _ticks(lengths: list[int]) -> list[int]:
    """Tested lengths that stand far enough apart to be read."""
    kept = [lengths[0]]
    for length in lengths[1:]:
        if length / kept[-1] >= 1.19:
            kept.append(length)
    return kept


def _marks(alt: Any, training_length: int, lengths: list[int]) -> list[Any]:
    """Upright lines at the training length and at three times it."""
    marks = [
        {"at": training_length, "label": f"trained up to {training_length}"},
        {"at": CLAIM * training_length, "label": f"{CLAIM}x"},
    ]
    shown = [mark for mark in marks if lengths[0] <= mark["at"] <= lengths[-1]]
    if not shown:  # Vega warns of a layer without data
        return []
    base = alt.Chart(alt.Data(values=shown))
    rule = base.mark_rule(style="guide", strokeWidth=1).encode(x="at:Q")
    text = base.mark_text(style="remark", baseline="bottom").encode(x="at:Q", y=alt.value(-5), text="label:N")
    return [rule, text]


def _guessing(alt: Any, guessing: Mapping[str, float], lengths: list[int]) -> list[Any]:
    """Dashed lines at the accuracy of guessing."""
    readable: list[dict[str, Any]] = []
    for label, level in sorted(guessing.items(), key=lambda item: item[1]):
        if not readable or level - readable[-1]["at"] > 0.05:  # closer ones would be drawn over each other
            readable.append({"at": level, "from": lengths[0], "label": f"{label}: {level:.1%}"})
    base = alt.Chart(alt.Data(values=readable))
    rule = base.mark_rule(style="guide", strokeDash=[5, 4]).encode(y="at:Q")
    text = base.mark_text(style="remark", align="left", baseline="bottom", dx=6, dy=-3).encode(
        y="at:Q", x="from:Q", text="label:N"
    )
    return [rule, text]
