"""The studies' results for the scripts that write and check docs/results.md: what they read, and what they count."""

import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from figures import ROOT

from latebloom.evaluation.result import HOLDS_AT
from latebloom.report.panel import Panel, panels
from latebloom.results.file import read_results
from latebloom.results.record import RunRecord

PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
EXACT = 0.99
"""What the composite task is to be answered at, near and far."""
NEAR, FAR = 3, 16
"""The paper's claim, and ours, in training lengths."""


WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def results_of(study: str) -> Path:
    return ROOT / "results" / f"{study}.parquet"


@cache
def read(study: str) -> list[Panel]:
    """A study's panels, that of the composite task first."""
    return sorted(panels(read_results([results_of(study)])), key=lambda panel: panel.task != "composite")


def composite(study: str) -> Panel:
    return next(panel for panel in read(study) if panel.task == "composite")


def at(panel: Panel, multiple: float) -> int:
    return round(multiple * panel.training_length)


def held(panel: Panel, arm: str) -> int:
    """How many seeds hold near."""
    return sum(accuracy >= HOLDS_AT for accuracy in panel.by_seed(arm, at(panel, NEAR)).values())


def exact(panel: Panel, arm: str) -> int:
    """How many seeds are exact, near and far."""
    lengths = [at(panel, multiple) for multiple in (NEAR, FAR)]
    return sum(all(run.accuracy(length) >= EXACT for length in lengths) for run in panel.finished[arm].values())


def cliffs(panel: Panel, arm: str) -> int:
    """How many seeds have a cliff."""
    return sum(run.cliff is not None for run in panel.finished[arm].values())


def config_of(run: RunRecord) -> dict[str, Any]:
    return json.loads(run.config)


def noise_of(run: RunRecord) -> float:
    return config_of(run)["training"].get("state_noise", 0.0)


def noisy(panel: Panel) -> set[str]:
    """The arms with noise on what is remembered."""
    return {run.arm for run in panel.runs if noise_of(run)}


def without_seed(run: RunRecord) -> dict[str, Any]:
    return {**config_of(run), "seed": None}


def seeds(panel: Panel, arm: str) -> int:
    return len(panel.finished[arm])


def level(panel: Panel, arm: str, multiple: float, digits: int = 0) -> str:
    return f"{mean(panel.by_seed(arm, at(panel, multiple)).values()):.{digits}%}"


def ahead(panel: Panel, arm: str, multiple: float) -> float:
    """How many points delayed attention is ahead of an arm."""
    dat, other = (mean(panel.by_seed(name, at(panel, multiple)).values()) for name in ("dat", arm))
    return 100 * (dat - other)


def word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)
