"""The tables and the picture of the OLMo-Hybrid example in docs/your-model.md, from results/olmo-hybrid*.json.

python docs/olmo_hybrid_figures.py            write them
python docs/olmo_hybrid_figures.py --check    fail if the page says something else (a test does this)
"""

import json
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from figures import ROOT, write_or_check

from latebloom.evaluation import Evaluation
from latebloom.report.charts import Point, length_chart
from latebloom.report.statistics import compare_arms, mean_interval
from latebloom.report.theme import chart_config

RESULTS = ROOT / "results" / "olmo-hybrid.json"
WITHOUT = ROOT / "results" / "olmo-hybrid-no-positions.json"
PAGE = ROOT / "docs" / "your-model.md"
PICTURE = ROOT / "docs" / "images" / "olmo-hybrid.svg"
ARMS = {"joint": "joint training", "dat": "delayed attention"}
ANSWERS = {"both": None, "sum": "sum", "recall": "recall"}
MULTIPLES = (1, 2, 3, 4)
UNSEEN, HELD_OUT = 10, 100
"""The first of the seeds on which nothing was chosen, and the first of those on which the learning rates were."""


class Study:
    """The runs of a results file: those that the rates were chosen by, and those that are shown."""

    def __init__(self, results: Path) -> None:
        self.found = json.loads(results.read_text())
        self.tuning = [run for run in self.found["runs"] if run["seed"] >= HELD_OUT]
        others = [run for run in self.found["runs"] if UNSEEN <= run["seed"] < HELD_OUT]
        shared = set.intersection(*({run["seed"] for run in others if run["arm"] == arm} for arm in ARMS))
        self.runs, self.seeds = [run for run in others if run["seed"] in shared], len(shared)

    @cached_property
    def first(self) -> Evaluation:
        return evaluation(self.runs[0])

    @property
    def start(self) -> int:
        return self.first.training_length

    def by_seed(self, arm: str, length: int, answer: str) -> dict[int, float]:
        of_arm = [run for run in self.runs if run["arm"] == arm]
        return {run["seed"]: evaluation(run).accuracy(length, ANSWERS[answer]) for run in of_arm}

    def points(self, answer: str) -> list[Point]:
        points = []
        for arm, label in ARMS.items():
            for length in self.first.lengths:
                over = mean_interval(self.by_seed(arm, length, answer).values())
                points.append(Point(label, length, over.mean, over.low, over.high, f"{over.seeds} seeds"))
        return points


def evaluation(run: dict[str, Any]) -> Evaluation:
    return Evaluation.from_json(run["evaluation"])


def table(study: Study) -> str:
    """Means over seeds with their intervals."""
    heads = [f"{multiple}x ({multiple * study.start})" for multiple in MULTIPLES]
    lines = [f"| right | run | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for answer in ANSWERS:
        for arm, label in ARMS.items():
            over = [mean_interval(study.by_seed(arm, n * study.start, answer).values()) for n in MULTIPLES]
            cells = [f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in over]
            lines.append(f"| {answer} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seed_by_seed(study: Study) -> str:
    """In how many seeds the delay is ahead beyond the training length, and by how much."""
    beyond = MULTIPLES[1:]
    lines = [
        f"Seeds of {study.seeds} in which delayed attention is ahead, and by how much on average [95% interval]:",
        "",
        f"| right | {' | '.join(f'{multiple}x' for multiple in beyond)} |",
        "|---|" + "---|" * len(beyond),
    ]
    for answer in ANSWERS:
        cells = []
        for multiple in beyond:
            dat, joint = (study.by_seed(arm, multiple * study.start, answer) for arm in ("dat", "joint"))
            found = compare_arms("dat", "joint", dat, joint)
            assert found is not None, "a comparison takes two seeds or more"
            by = found.difference
            cells.append(f"{found.ahead}: {by.mean:+.3f} [{by.low:+.3f}, {by.high:+.3f}]")
        lines.append(f"| {answer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rates(study: Study) -> str:
    """The arms' learning rates, and what they were chosen by."""
    said = []
    for arm, label in ARMS.items():
        tried: dict[float, list[float]] = {}
        for run in study.tuning:
            if run["arm"] == arm:
                tried.setdefault(run["learning_rate"], []).append(evaluation(run).accuracy(3 * study.start))
        (chosen,) = {run["learning_rate"] for run in study.runs if run["arm"] == arm}
        each = ", ".join(f"{fmean(found):.3f} at {rate:g}" for rate, found in sorted(tried.items()))
        said.append(f"{label} {chosen:g} ({each})")
    seeds = ", ".join(sorted({str(run["seed"]) for run in study.tuning}))
    return f"Learning rates, each chosen by both right at 3x on the held-out seeds {seeds}: {'; '.join(said)}."


def page(study: Study, without: Study) -> str:
    return "\n\n".join([told(study), "### Without positions in attention", told(without)])


def told(study: Study) -> str:
    where = study.found["environment"]
    commands = ", ".join(f"`{command}`" for command in study.found["commands"])
    (steps,) = {run["steps"] for run in study.found["runs"]}
    return "\n\n".join(
        [
            f"Mean over {study.seeds} seeds [95% bootstrap interval]; trained up to length {study.start}:",
            table(study),
            seed_by_seed(study),
            rates(study),
            f"{commands}: {steps:,} steps a run; torch {where['torch']}, Transformers {where['transformers']}, "
            f"commit {where['commit'][:12]}.",
        ]
    )


def draw(study: Study) -> None:
    """A panel for both answers together, and one for each."""
    from vl_convert import vegalite_to_svg

    guessing = {"both": study.first.chance_all, **study.first.chance}
    panels = []
    for answer in ANSWERS:
        panel = length_chart(study.points(answer), study.start, {"guessing": guessing[answer]}, right=f"{answer} right")
        del panel["config"]  # stands once, around all panels
        rows = panel.pop("datasets")["points"]
        for layer in panel["layer"]:
            if layer["data"] == {"name": "points"}:  # a name that every panel has
                layer["data"] = {"values": rows}
        panels.append(panel | {"width": 250, "height": 220})
    PICTURE.write_text(vegalite_to_svg({"hconcat": panels, "config": chart_config()}))


if __name__ == "__main__":
    study = Study(RESULTS)
    write_or_check(RESULTS, PAGE, page(study, Study(WITHOUT)), PICTURE, lambda: draw(study))
