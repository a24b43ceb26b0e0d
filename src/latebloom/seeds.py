"""One configuration with many seeds: trained together, shown as one table."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_json
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import TrainedRun
from latebloom.errors import CheckpointError, InterruptedRun, require
from latebloom.evaluation.result import CLAIM, HOLDS_AT, Evaluation
from latebloom.progress import StudyBar
from latebloom.report.terminal import say
from latebloom.studies.local import run_all


def train_seeds(config: RunConfig, count: int, out: Path, *, device: str | None = None) -> dict[str, TrainedRun]:
    """Train `count` runs with the configuration's seed and those after it, in `out/seed-N` each."""
    require(1 <= count <= 100_000, "seeds", count, "from 1 to 100000")
    configs = {f"seed-{seed}": replace(config, seed=seed) for seed in range(config.seed, config.seed + count)}
    for name, chosen in configs.items():
        folder = RunFolder(out / name)
        if folder.config_file.exists() and folder.read_config().hash != chosen.hash:
            raise CheckpointError(f"out: {out / name} holds another run; choose another folder with --out")
    console = Console()
    with StudyBar() as bar:
        bar.expect(configs, out)
        try:
            trained = run_all(configs, out, device=device, observe=bar.show)
        except InterruptedRun as stop:
            raise InterruptedRun(f"{stop}; go on with: latebloom {shlex.join(sys.argv[1:])}") from None
    evaluations = [run.evaluation for run in trained.values()]
    console.print(seeds_table(evaluations))
    say(console, seen(evaluations))
    runs = [run.result | {"name": name, "evaluation": run.evaluation.to_json()} for name, run in trained.items()]
    write_json(out / "summary.json", {"config": config.to_json(), "runs": runs})
    say(console, f"A folder for each run: {out}   Numbers: {out / 'summary.json'}")
    return trained


def seeds_table(evaluations: list[Evaluation]) -> Table:
    """All answers right at each length: the mean over seeds, the worst and the best."""
    first = evaluations[0]
    table = Table(title=f"all answers right, over {len(evaluations)} seeds", title_justify="left", title_style="")
    for heading in ("length", "", "mean", "worst", "best", f"seeds at {HOLDS_AT:.0%}"):
        table.add_column(heading, justify="right")
    for length in first.lengths:
        each = [evaluation.accuracy(length) for evaluation in evaluations]
        held = sum(accuracy >= HOLDS_AT for accuracy in each)
        numbers = (f"{value:.3f}" for value in (mean(each), min(each), max(each)))
        table.add_row(str(length), f"{length / first.training_length:g}x", *numbers, f"{held} of {len(each)}")
    return table


def seen(evaluations: list[Evaluation]) -> str:
    """What came out, in a sentence."""
    reaches = sorted(evaluation.reach for evaluation in evaluations)
    far = sum(reach >= CLAIM for reach in reaches)
    cliffs = sum(evaluation.cliff is not None for evaluation in evaluations)
    return (
        f"A reach of {CLAIM} or more in {far} of {len(reaches)} seeds; reach from {reaches[0]:g}x to {reaches[-1]:g}x, "
        f"median {reaches[len(reaches) // 2]:g}x; a cliff in {cliffs}."
    )
