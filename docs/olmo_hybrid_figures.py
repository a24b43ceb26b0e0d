"""The table and the picture of the OLMo-Hybrid example in docs/your-model.md, from results/olmo-hybrid.json.

python docs/olmo_hybrid_figures.py            write them
python docs/olmo_hybrid_figures.py --check    fail if the page says something else (a test does this)
"""

import json
from statistics import fmean
from typing import Any

from figures import ROOT, write_or_check

from latebloom.evaluation import Evaluation
from latebloom.report.charts import Point, length_chart
from latebloom.report.statistics import compare_arms, mean_interval
from latebloom.report.theme import chart_config

RESULTS = ROOT / "results" / "olmo-hybrid.json"
PAGE = ROOT / "docs" / "your-model.md"
PICTURE = ROOT / "docs" / "images" / "olmo-hybrid.svg"
ARMS = {"joint": "joint training", "dat": "delayed attention"}
ANSWERS = {"both": None, "sum": "sum", "recall": "recall"}
MULTIPLES = (1, 2, 3, 4)
HELD_OUT = 100
"""The first seed of those on which the learning rates were chosen."""


class Study:
    """The runs of the results file, by arm and seed."""

    def __init__(self) -> None:
        found = json.loads(RESULTS.read_text())
        self.environment, self.command = found["environment"], found["command"]
        self.tuning = [run for run in found["runs"] if run["seed"] >= HELD_OUT]
        self.runs = [run for run in found["runs"] if run["seed"] < HELD_OUT]
        self.seeds = len({run["seed"] for run in self.runs})
        first = evaluation(self.runs[0])
        self.start, self.lengths, self.chance = first.training_length, first.lengths, first.chance
        self.chance_all = first.chance_all
        self.far = 3 * self.start

    def by_seed(self, arm: str, length: int, answer: str) -> dict[int, float]:
        return {
            run["seed"]: evaluation(run).accuracy(length, ANSWERS[answer]) for run in self.runs if run["arm"] == arm
        }

    def cell(self, arm: str, length: int, answer: str) -> str:
        over = mean_interval(self.by_seed(arm, length, answer).values())
        return f"{over.mean:.3f} [{over.low:.3f}, {over.high:.3f}]"


def evaluation(run: dict[str, Any]) -> Evaluation:
    return Evaluation.from_json(run["evaluation"])


def table(study: Study) -> str:
    """Means over seeds with their intervals, the arms seed by seed, and how the rates were chosen."""
    heads = [f"{multiple}x ({multiple * study.start})" for multiple in MULTIPLES]
    lines = [
        f"Mean over {study.seeds} seeds [95% bootstrap interval]; trained up to length {study.start}:",
        "",
        f"| right | run | {' | '.join(heads)} |",
        "|---|---|" + "---|" * len(heads),
    ]
    for answer in ANSWERS:
        for arm, label in ARMS.items():
            cells = [study.cell(arm, multiple * study.start, answer) for multiple in MULTIPLES]
            lines.append(f"| {answer} | {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", seed_by_seed(study), "", rates(study), "", origin(study)])


def seed_by_seed(study: Study) -> str:
    """In how many seeds the delay is ahead at three times the training length, and by how much."""
    said = []
    for answer in ANSWERS:
        found = compare_arms("dat", "joint", *(study.by_seed(arm, study.far, answer) for arm in ("dat", "joint")))
        assert found is not None, "a comparison takes two seeds or more"
        by = found.difference
        interval = f"{by.mean:+.3f} [{by.low:+.3f}, {by.high:+.3f}]"
        said.append(f"{answer} in {found.ahead} of {by.seeds} ({interval}, p = {found.p:.3f})")
    return (
        f"Seeds in which delayed attention is ahead at 3x, and by how much: {'; '.join(said)}. "
        f"With {study.seeds} seeds the test, exact sign flips, cannot give a p below {2.0 ** (1 - study.seeds):.3f}."
    )


def rates(study: Study) -> str:
    """What each arm's learning rate was chosen by."""
    said = []
    for arm, label in ARMS.items():
        tried: dict[float, list[float]] = {}
        for run in study.tuning:
            if run["arm"] == arm:
                tried.setdefault(run["learning_rate"], []).append(evaluation(run).accuracy(study.far))
        chosen = next(run["learning_rate"] for run in study.runs if run["arm"] == arm)
        each = ", ".join(f"{fmean(found):.3f} at {rate:g}" for rate, found in tried.items())
        said.append(f"{label} {chosen:g} ({each})")
    seeds = len({run["seed"] for run in study.tuning})
    return f"Learning rates, each chosen by both right at 3x on {seeds} other seeds: {'; '.join(said)}."


def origin(study: Study) -> str:
    where = study.environment
    versions = f"torch {where['torch']}, Transformers {where['transformers']}, commit {where['commit'][:12]}"
    return f"`{study.command}`, {study.runs[0]['steps']} steps a run; {versions}."


def draw(study: Study) -> None:
    """A panel for both answers together, and one for each."""
    from vl_convert import vegalite_to_svg

    guessing = {"both": study.chance_all, **study.chance}
    panels: list[dict[str, Any]] = []
    for answer in ANSWERS:
        points = []
        for arm, label in ARMS.items():
            for length in study.lengths:
                over = mean_interval(study.by_seed(arm, length, answer).values())
                points.append(Point(label, length, over.mean, over.low, over.high, f"{study.seeds} seeds"))
        panel = length_chart(points, study.start, {"guessing": guessing[answer]}, right=f"{answer} right")
        rows = panel.pop("datasets")["points"]
        for layer in panel["layer"]:
            if layer["data"] == {"name": "points"}:
                layer["data"] = {"values": rows}
        del panel["config"]
        panels.append(panel | {"width": 250, "height": 220})
    PICTURE.write_text(vegalite_to_svg({"hconcat": panels, "config": chart_config()}))


if __name__ == "__main__":
    study = Study()
    write_or_check(RESULTS, PAGE, table(study), PICTURE, lambda: draw(study))
