"""Accuracy by length as a chart: PNG, SVG, PDF or a page of its own, all made offline."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from latebloom.errors import ConfigError, unknown
from latebloom.evaluation.result import CLAIM, Evaluation

if TYPE_CHECKING:
    import altair

FORMATS: tuple[Literal["png", "svg", "pdf", "html"], ...] = ("png", "svg", "pdf", "html")
COLORS = ("#d1495b", "#00798c", "#edae49", "#66a182", "#2e4057", "#8d6a9f")


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
    return save_chart(accuracy_chart(named, title=title), Path(path))


def save_chart(chart: "altair.LayerChart | altair.FacetChart", path: Path) -> Path:
    """Write a chart in the format that the file's name ends in."""
    form = path.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise unknown("plot", str(path), [f"*.{known}" for known in FORMATS])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "html":
            path.write_text(chart.to_html(inline=True))
        elif form == "png":
            chart.save(str(path), format="png", ppi=144)
        else:
            chart.save(str(path), format=form)
    except OSError as error:
        raise ConfigError(f"plot: {path} cannot be written ({error.strerror})") from None
    return path


def accuracy_chart(
    evaluations: Mapping[str, Evaluation], *, title: str = ""
) -> "altair.LayerChart | altair.FacetChart":
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
        levels |= {f"guessing the {name} only": level for name, level in evaluation.chance.items()}
    return levels


@dataclass(frozen=True)
class Point:
    """One point of a line, with its interval."""

    run: str
    length: int
    accuracy: float
    low: float
    high: float
    over: str
    """What the interval is over."""


def length_chart(
    points: Sequence[Point], training_length: int, guessing: Mapping[str, float], *, title: str = ""
) -> "altair.LayerChart | altair.FacetChart":
    """Lines with bands, the training length, three times it, and guessing."""
    import altair as alt

    lengths = sorted({point.length for point in points})
    names = list(dict.fromkeys(point.run for point in points))
    x = alt.X(
        "length:Q",
        title="length (items in a sequence)",
        scale=alt.Scale(type="log", domain=[lengths[0], lengths[-1]], nice=False),
        axis=alt.Axis(values=_ticks(lengths), format="d", grid=False, labelOverlap=True),
    )
    y = alt.Y("accuracy:Q", title="all answers right", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    color = alt.Color(
        "run:N",
        sort=names,
        scale=alt.Scale(domain=names, range=[COLORS[i % len(COLORS)] for i in range(len(names))]),
        legend=alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeWidth=4, symbolOpacity=1),
    )
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("length:Q"),
        alt.Tooltip("accuracy:Q", format=".1%"),
        alt.Tooltip("low:Q", title="95% from", format=".1%"),
        alt.Tooltip("high:Q", title="to", format=".1%"),
        alt.Tooltip("over:N"),
    ]
    base = alt.Chart(alt.Data(values=[asdict(point) for point in points]))
    layers: list[Any] = [
        _marks(alt, training_length, lengths),
        _guessing(alt, guessing, lengths),
        base.mark_area(opacity=0.2).encode(x=x, y=alt.Y("low:Q", title=""), y2="high:Q", color=color),
        base.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=color),
        base.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=color, tooltip=tooltip),
    ]
    return (
        alt.layer(*layers)
        .properties(width=560, height=320, title=alt.TitleParams(title, anchor="start"))
        .configure_view(strokeWidth=0)
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .configure_legend(labelFontSize=13, labelLimit=400)
    )


def _ticks(lengths: list[int]) -> list[int]:
    """Tested lengths that stand far enough apart to be read."""
    kept = [lengths[0]]
    for length in lengths[1:]:
        if length / kept[-1] >= 1.19:
            kept.append(length)
    return kept


def _marks(alt: Any, training_length: int, lengths: list[int]) -> Any:
    """Upright lines at the training length and at three times it."""
    marks = [
        {"at": training_length, "label": f"trained up to {training_length}"},
        {"at": CLAIM * training_length, "label": f"{CLAIM}x"},
    ]
    shown = [mark for mark in marks if lengths[0] <= mark["at"] <= lengths[-1]]
    base = alt.Chart(alt.Data(values=shown))
    rule = base.mark_rule(color="#888", strokeWidth=1).encode(x="at:Q")
    text = base.mark_text(align="left", baseline="bottom", dx=4, color="#777", fontSize=11).encode(
        x="at:Q", y=alt.value(312), text="label:N"
    )
    return rule + text


def _guessing(alt: Any, guessing: Mapping[str, float], lengths: list[int]) -> Any:
    """Dashed lines at the accuracy of guessing."""
    readable: list[dict[str, Any]] = []
    for label, level in sorted(guessing.items(), key=lambda item: item[1]):
        if not readable or level - readable[-1]["at"] > 0.05:  # closer ones would be drawn over each other
            readable.append({"at": level, "from": lengths[0], "label": f"{label}: {level:.1%}"})
    base = alt.Chart(alt.Data(values=readable))
    rule = base.mark_rule(strokeDash=[5, 4], color="#888").encode(y="at:Q")
    text = base.mark_text(align="left", baseline="bottom", dx=6, dy=-3, color="#777", fontSize=11).encode(
        y="at:Q", x="from:Q", text="label:N"
    )
    return rule + text
