"""The README's picture and table, from results/demo-seeds.json.

python docs/figures.py            write them
python docs/figures.py --check    fail if the README says something else (a test does this)
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latebloom.recipes import recipe
from latebloom.report.charts import Point, length_chart, save_chart
from latebloom.report.statistics import mean_interval

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "demo-seeds.json"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "demo-seeds.svg"
ARMS = {
    "joint": "joint training",
    "dat": "delayed attention",
    "joint-by-position": "joint, 6e-3, weighed by position",
}
MULTIPLES = (1, 2, 3, 4, 8)


def accuracies(runs: list[dict[str, Any]], arm: str, length: int) -> list[float]:
    """One accuracy a seed."""
    return [run["accuracy"]["both"][str(length)] for run in runs if run["name"] == arm]


def table(runs: list[dict[str, Any]]) -> str:
    """Mean over seeds with its interval, and the worst seed at 3x."""
    start = runs[0]["training_length"]
    seeds = len({run["seed"] for run in runs})
    heads = [f"{multiple}x ({multiple * start})" for multiple in MULTIPLES]
    lines = [
        f"Both answers right, mean over {seeds} seeds [95% bootstrap interval]; trained up to length {start}:",
        "",
        f"| run | {' | '.join(heads)} | worst seed at 3x | best seed at 3x |",
        "|---|" + "---|" * (len(heads) + 2),
    ]
    for arm, label in ARMS.items():
        cells = []
        for multiple in MULTIPLES:
            over = mean_interval(accuracies(runs, arm, multiple * start))
            cells.append(f"{over.mean:.3f} [{over.low:.3f}, {over.high:.3f}]")
        far = accuracies(runs, arm, 3 * start)
        lines.append(f"| {label} | {' | '.join(cells)} | {min(far):.3f} | {max(far):.3f} |")
    held = sum(accuracy >= 0.9 for accuracy in accuracies(runs, "dat", 3 * start))
    fell = sum(accuracy < 0.5 for accuracy in accuracies(runs, "joint", 3 * start))
    lines += [
        "",
        f"Delayed attention is at 90% or more at 3x in {held} of {seeds} seeds; "
        f"the demo's joint training is below 50% there in {fell} of {seeds}.",
    ]
    return "\n".join(lines)


def picture(runs: list[dict[str, Any]]) -> None:
    points = []
    for arm, label in ARMS.items():
        lengths = sorted(int(length) for length in runs[0]["accuracy"]["both"])
        seeds = len({run["seed"] for run in runs})
        for length in lengths:
            over = mean_interval(accuracies(runs, arm, length))
            points.append(Point(label, length, over.mean, over.low, over.high, f"{seeds} seeds"))
    task = recipe("demo-dat").task
    guessing = {"guessing all": task.chance_all, "all but the sum right": task.chance["sum"]}
    save_chart(length_chart(points, runs[0]["training_length"], guessing), PICTURE)


def write_or_check(
    results: Path, page: Path, table: str, image: Path | None = None, draw: Callable[[], None] = lambda: None
) -> None:
    """Put the table between the page's marks and draw the image; with --check, fail if either is of other results."""
    begin, end = f"<!-- {results.stem} -->", f"<!-- /{results.stem} -->"
    text = page.read_text()
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    wanted = f"{before}{begin}\n{table}\n{end}{after}"
    # ties the picture to the numbers that it was drawn from
    stamp = f"<!-- drawn from results {hashlib.sha256(results.read_bytes()).hexdigest()} -->\n"
    if "--check" not in sys.argv[1:]:
        page.write_text(wanted)
        draw()
        if image is not None:
            image.write_text(image.read_text() + stamp)
    elif wanted != text:
        sys.exit(f"the table of {page.name} is not that of {results.name}")
    elif image is not None and not image.read_text().endswith(stamp):
        sys.exit(f"{image.name} was not drawn from {results.name}")


if __name__ == "__main__":
    runs = json.loads(RESULTS.read_text())["runs"]
    write_or_check(RESULTS, README, table(runs), PICTURE, lambda: picture(runs))
