"""Charts of losses and probes by length of context, for the page of a trial."""

from collections.abc import Sequence
from typing import Any

from latebloom.report.charts import DASHES, SHAPES, Row, Spec, layer, layered, nominal, quantity


def context_point(line: str, context: int, value: float, low: float | None, high: float | None) -> Row:
    """Return a point of a line, with its interval if there is one."""
    interval = "none" if low is None or high is None else f"{low:.3f} to {high:.3f}"
    return {"line": line, "context": context, "value": value, "low": low, "high": high, "interval": interval}


def context_chart(
    points: Sequence[Row],
    base: int,
    title: str,
    unit: str,
    *,
    level: float | None = None,
    domain: tuple[float, float] | None = None,
    height: int = 300,
) -> Spec:
    """Draw a line with a band for each name, by tokens of context; `level` is drawn as a horizontal line."""
    names = list(dict.fromkeys(point["line"] for point in points))
    contexts = sorted({point["context"] for point in points})
    scale: dict[str, Any] = {"type": "log", "base": 2, "domain": [contexts[0], contexts[-1]], "nice": False}
    axis = {"values": contexts, "grid": False, "labelExpr": f"datum.value + ' (' + datum.value / {base} + 'x)'"}
    x = quantity("context", title="tokens of context", scale=scale, axis=axis | {"labelOverlap": True})
    is_share = domain == (0, 1)
    y_scale = {"domain": list(domain)} if domain else {"zero": False}
    y = quantity("value", title=unit, scale=y_scale, axis={"format": "%" if is_share else "~r", "tickCount": 6})
    legend = {"title": None, "orient": "top", "symbolOpacity": 1} if len(names) > 1 else None
    color, dashes, shapes = (
        nominal(
            "line", scale={"domain": names} | ({"range": list(values[: len(names)])} if values else {}), legend=legend
        )
        for values in ((), DASHES, SHAPES)
    )
    value = quantity("value", format=".1%" if is_share else ".3f")
    about = [nominal("line", title="arm"), quantity("context"), value, nominal("interval", title="95% interval")]
    place = {"x": x, "y": y, "color": color}
    band = {"x": x, "y": quantity("low", title=""), "y2": {"field": "high"}, "color": color}
    layers = [
        layer({"type": "area", "opacity": 0.2}, band, transform=[{"filter": "datum.low !== null"}]),
        layer({"type": "line", "strokeWidth": 2.5}, place | {"strokeDash": dashes}),
        layer(
            {"type": "point", "filled": True, "size": 60, "opacity": 0.9}, place | {"shape": shapes, "tooltip": about}
        ),
    ]
    if level is not None:
        rule = {"type": "rule", "style": "guide", "strokeDash": [5, 4]}
        layers.insert(0, layer(rule, {"y": quantity("at")}, {"values": [{"at": level}]}))
    return layered(layers, list(points), title, height)
