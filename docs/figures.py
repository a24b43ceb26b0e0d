"""The README's picture and table, from results/demo-seeds.json.

python docs/figures.py            write them
python docs/figures.py --check    fail if the README says something else (a test does this)
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from latebloom.recipes import recipe
from latebloom.report.charts import Point, length_chart, save_chart
from latebloom.report.statistics import mean_interval

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "demo-seeds.json"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "demo-seeds.svg"
BEGIN, END = "<!-- demo-seeds -->", "<!-- /demo-seeds -->"
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
    guessing = {"guessing all": task.chance_all, "guessing the sum only": task.chance["sum"]}
    save_chart(length_chart(points, runs[0]["training_length"], guessing), PICTURE)
    PICTURE.write_text(PICTURE.read_text() + stamp())


def stamp() -> str:
    """A mark that ties the picture to the numbers that it was drawn from."""
    return f"<!-- drawn from results {hashlib.sha256(RESULTS.read_bytes()).hexdigest()} -->\n"


def with_table(text: str, runs: list[dict[str, Any]]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(runs)}\n{END}{after}"


def main() -> None:
    runs = json.loads(RESULTS.read_text())["runs"]
    text = README.read_text()
    wanted = with_table(text, runs)
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.exit("the README's table is not that of results/demo-seeds.json")
        if not PICTURE.read_text().endswith(stamp()):
            sys.exit("docs/images/demo-seeds.svg was not drawn from results/demo-seeds.json")
        return
    README.write_text(wanted)
    picture(runs)


if __name__ == "__main__":
    main()
