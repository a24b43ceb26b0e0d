"""`latebloom train --seeds N`: a study of one arm, with the tables of a report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_json
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import TrainedRun
from latebloom.errors import LatebloomError, require
from latebloom.report.study import read_sections
from latebloom.report.tables import print_table
from latebloom.report.terminal import say
from latebloom.studies.plan import Arm, Plan
from latebloom.study import train_plan

TITLE = "seeds"


def train_seeds(config: RunConfig, count: int, out: Path, *, device: str | None = None) -> dict[str, TrainedRun]:
    """Train `count` runs with consecutive seeds from the configuration's on, each in `out/seed-N`."""
    require(1 <= count <= 100_000, "seeds", count, "from 1 to 100000")
    trained = train_arms(TITLE, {"": config}, range(config.seed, config.seed + count), out, device=device)
    trained = {name.lstrip("/"): run for name, run in trained.items()}
    console = Console()
    (section,) = read_sections([out])
    print_table(console, section.every_length)
    print_table(console, section.tables["reach"])
    say(console, f"{section.headline} {section.caveats}")
    runs = [run.result | {"name": name, "evaluation": run.evaluation.to_json()} for name, run in trained.items()]
    write_json(out / "summary.json", {"config": config.to_json(), "runs": runs})
    say(console, f"A folder for each run: {out}   Numbers: {out / 'summary.json'}")
    return trained


def begun_seeds(out: Path) -> tuple[RunConfig, int] | None:
    """Return the configuration and the number of seeds of the `train --seeds` that has begun in a folder, or None."""
    runs, file = RunFolder(out).runs_below(), out / "study.json"
    about = RunFolder(out).read_json(file) if runs and file.exists() else {}
    if about.get("study") != TITLE:
        return None
    return replace(RunFolder(runs[0]).read_config(), seed=min(about["seeds"])), len(about["seeds"])


def train_arms(
    title: str, configs: dict[str, RunConfig], seeds: Sequence[int], out: Path, *, device: str | None = None
) -> dict[str, TrainedRun]:
    """Train a few arms as a study whose runs are in `out/ARM/seed-N`; return them by folder. A failure is an error."""
    arms = [Arm(arm or "run", replace(config, seed=0), folder=arm) for arm, config in configs.items()]
    folders = {f"{arm}/seed-{seed}": replace(config, seed=seed) for arm, config in configs.items() for seed in seeds}
    for name, config in folders.items():
        RunFolder(out / name.lstrip("/")).require_same_settings(config)
    outcome = train_plan(title, Plan(arms, seeds), out, device=device)
    if outcome.failures:
        raise LatebloomError("; ".join(f"run {name} failed: {reason}" for name, reason in outcome.failures.items()))
    return {name: TrainedRun.load(out / name.lstrip("/")) for name in folders}
