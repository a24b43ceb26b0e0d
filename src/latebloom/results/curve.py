"""Training curves, thinned so that they fit into the results file."""

import json
from collections.abc import Iterable, Iterator

from latebloom.errors import CheckpointError
from latebloom.results.record import CurvePoint

MOST = 100
"""The largest number of points of a measure."""


def read_curve(lines: Iterable[str], source: object) -> tuple[CurvePoint, ...]:
    """Read losses and held-out accuracies from the lines of a metrics.jsonl."""
    found: dict[tuple[str, int | None], list[CurvePoint]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            for point in _points(json.loads(line)):
                found.setdefault((point.measure, point.length), []).append(point)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{source} is damaged in line {number} ({type(error).__name__}: {error})") from None
    return tuple(point for points in found.values() for point in thin(points))


def thin(points: list[CurvePoint], most: int = MOST) -> list[CurvePoint]:
    """Return at most `most` points: each is the mean of neighbours, at the last of their steps."""
    size = -(-len(points) // most) or 1
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [
        CurvePoint(group[-1].measure, group[-1].length, group[-1].step, sum(p.value for p in group) / len(group))
        for group in groups
    ]


def _points(line: dict) -> Iterator[CurvePoint]:
    if "loss" in line:
        yield CurvePoint("loss", None, line["step"], float(line["loss"]))
    for length, values in line.get("check", {}).items():
        for name, value in values.items():
            measure = name if name == "accuracy" else f"accuracy_{name}"
            yield CurvePoint(measure, int(length), line["step"], float(value))
