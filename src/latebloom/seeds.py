"""`latebloom train --seeds N`: a study of one arm, shown as one table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_json
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import TrainedRun
from latebloom.errors import CheckpointError, LatebloomError, require
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.study_tables import seeds_table
from latebloom.report.tables import print_table
from latebloom.report.terminal import say
from latebloom.studies.plan import Arm, Plan
from latebloom.study import train_plan


def train_seeds(config: RunConfig, count: int, out: Path, *, device: str | None = None) -> dict[str, TrainedRun]:
    """Train `count` runs with consecutive seeds from the configuration's on, each in `out/seed-N`."""
    require(1 <= count <= 100_000, "seeds", count, "from 1 to 100000")
    trained = train_arms("seeds", {"": config}, range(config.seed, config.seed + count), out, device=device)
    trained = {name.lstrip("/"): run for name, run in trained.items()}
    evaluations = [run.evaluation for run in trained.values()]
    console = Console()
    print_table(console, seeds_table(evaluations))
    say(console, describe_seeds(evaluations))
    runs = [run.result | {"name": name, "evaluation": run.evaluation.to_json()} for name, run in trained.items()]
    write_json(out / "summary.json", {"config": config.to_json(), "runs": runs})
    say(console, f"A folder for each run: {out}   Numbers: {out / 'summary.json'}")
    return trained


def train_arms(
    title: str, configs: dict[str, RunConfig], seeds: Sequence[int], out: Path, *, device: str | None = None
) -> dict[str, TrainedRun]:
    """Train a few arms as a study whose runs are in `out/ARM/seed-N`; return them by folder. A failure is an error."""
    arms = [Arm(arm or "run", replace(config, seed=0), folder=arm) for arm, config in configs.items()]
    folders = {f"{arm}/seed-{seed}": replace(config, seed=seed) for arm, config in configs.items() for seed in seeds}
    for name, config in folders.items():
        folder = RunFolder(out / name.lstrip("/"))
        if folder.config_file.exists() and folder.read_config().hash != config.hash:
            raise CheckpointError(f"out: {folder.path} holds another run; choose another folder with --out")
    outcome = train_plan(title, Plan(arms, seeds), out, device=device)
    if outcome.failures:
        raise LatebloomError("; ".join(f"run {name} failed: {reason}" for name, reason in outcome.failures.items()))
    return {name: TrainedRun.load(out / name.lstrip("/")) for name in folders}


def describe_seeds(evaluations: Sequence[Evaluation]) -> str:
    """Summarize reach and cliffs over seeds."""
    reaches = sorted(evaluation.reach for evaluation in evaluations)
    far = sum(reach >= CLAIM for reach in reaches)
    cliffs = sum(evaluation.cliff is not None for evaluation in evaluations)
    return (
        f"A reach of {CLAIM} or more in {far} of {len(reaches)} seeds; reach from {reaches[0]:g}x to {reaches[-1]:g}x, "
        f"median {reaches[len(reaches) // 2]:g}x; a cliff in {cliffs}."
    )
