"""Compute the tables of docs/components.md and docs/results/capability.md from results/; docs/fill.py writes them."""

import json
from statistics import fmean
from typing import Any

from performance_tables import read
from values import ROOT, at, evaluations, made, table

from latebloom.evaluation.result import HOLDS_AT, Evaluation
from latebloom.studies.capability import MULTIPLES, PREDICTED, TASKS
from latebloom.studies.capability_longer import CHOSEN, DEEPER, GROWING, ONE_HEAD
from latebloom.studies.capability_longer import MULTIPLES as LONGER_MULTIPLES

RECURRENCES: dict[str, Any] = read("bench-recurrences-cpu")
RECURRENCES_GPU: dict[str, Any] = read("bench-recurrences-h200")
MEMORY: dict[str, Any] = json.loads((ROOT / "results" / "memory.json").read_text())
KINDS = {
    "recurrence": "10,000 items, with attention",
    "in pieces": "100,000 tokens in pieces, without attention",
    "scores": "10,000 items",
    "task": "10,000 items",
}
COMPARED_AT = {"recall": 16}
"""The multiple at which a prediction is compared with the runs, where it is not 4."""


def recurrence_speed() -> str:
    """Return the time of a training step with each recurrence, on a CPU and on a GPU."""
    rows = []
    for name in RECURRENCES["recurrences"]:
        cells = [f"`{name}`"]
        for report, arms in ((RECURRENCES, ("one run",)), (RECURRENCES_GPU, ("one run", "64 stacked runs"))):
            figures = report["recurrences"][name]
            for arm in arms:
                step, ratio = figures["arms"][arm]["step_ms"]["minimum"], figures["ratio_to_lstm"][arm]
                cells.append(f"{step:.{0 if step >= 50 else 1}f} ({ratio:.2f})")
        rows.append("|".join(cells))
    return table("recurrence|CPU, one run|GPU, one captured run|GPU, 64 stacked runs", rows)


def memory() -> str:
    """Return the largest peak of each kind of case, and where it occurs."""
    rows = []
    for kind, words in KINDS.items():
        found = {name.partition("/")[2]: row for name, row in MEMORY["rows"].items() if name.startswith(f"{kind}/")}
        largest = max(found, key=lambda name: found[name]["bytes"])
        tokens = max(row["tokens"] for row in found.values())
        label = "recurrence" if kind == "in pieces" else kind
        size = found[largest]["bytes"] / 2**30
        rows.append(f"each {label.rstrip('s')}, {words}|{len(found)}|{tokens:,}|{size:.2f} GiB|`{largest}`")
    return table("what varies|cases|tokens, at most|largest peak|for", rows)


# The study `capability`


def is_measured() -> bool:
    return (ROOT / "results" / "capability.parquet").exists()


def capability_state() -> str:
    """Say where the runs were made, or that there are none."""
    if is_measured():
        return made("capability")
    return "the study has not been run at this scale yet, so the table has the predictions alone."


def capability() -> str:
    """Return what theory predicts of each recurrence and task, and what was measured where it was."""
    rows = ["|".join([name, *(_cell(name, task) for task in TASKS)]) for name in PREDICTED]
    return table("|".join(["recurrence", *TASKS]), rows)


def _cell(name: str, task: str) -> str:
    predicted = "yes" if task in PREDICTED[name] else "no"
    if not is_measured():
        return predicted
    runs = list(evaluations(f"capability:{task}/{name}").values())
    means = " / ".join(f"{100 * fmean(at(run, multiple) for run in runs):.0f}" for multiple in MULTIPLES)
    found = sum(at(run, COMPARED_AT.get(task, 4)) >= HOLDS_AT for run in runs)
    cell = f"{predicted}: {means} ({found})"
    return cell if (found > 0) == (predicted == "yes") else f"**{cell}**"


def disagreements() -> str:
    """Name the cells in which the runs disagree with the prediction."""
    if not is_measured():
        return "not measured"
    cells = [f"{name} on {task}" for name in PREDICTED for task in TASKS if _cell(name, task).startswith("**")]
    return "; ".join(cells) or "none"


def longer(task: str, arm: str) -> list[Evaluation]:
    """Return the evaluations of an arm of the study `capability_longer`."""
    return list(evaluations(f"capability_longer:{task}/{arm}").values())


def longer_mean(task: str, arm: str, multiple: float = 1) -> str:
    """Return the mean accuracy of an arm of that study as text."""
    return f"{fmean(at(run, multiple) for run in longer(task, arm)):.0%}"


def longer_held(task: str, arm: str) -> int:
    """Return how many seeds of an arm of that study hold at four times the training length."""
    return sum(at(run, 4) >= HOLDS_AT for run in longer(task, arm))


def longer_supported() -> str:
    """Say in how many cells the hypothesis of that study is supported."""
    supported = [cell for cell in CHOSEN if longer_held(cell[0], f"{cell[1]}: {GROWING}") > 0]
    return f"{len(supported)} of {len(CHOSEN)}"


def capability_longer() -> str:
    """Return what more training found in the cells that disagree: mean accuracy by length, and the seeds that hold."""
    rows = []
    for task, name in CHOSEN:
        for easier in (GROWING, DEEPER, *([ONE_HEAD] if name == "m2rnn" else [])):
            arm = f"{name}: {easier}"
            means = "|".join(longer_mean(task, arm, multiple).rstrip("%") for multiple in LONGER_MULTIPLES)
            rows.append(f"{name}|{task}|{easier}|{means}|{longer_held(task, arm)}")
    lengths = "|".join(f"{multiple:g}x" for multiple in LONGER_MULTIPLES)
    return table(f"recurrence|task|what is easier|{lengths}|seeds at 4x", rows)
