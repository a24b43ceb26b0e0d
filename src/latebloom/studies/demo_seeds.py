"""The demo over many seeds, and beside it the joint training that does best: the numbers behind the README.

    python -m latebloom.studies.demo_seeds --out runs/demo-seeds --results results/demo-seeds.json

Stopped and started again, it goes on where it was.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

from latebloom.config import RunConfig
from latebloom.demo import demo_configs, summarize
from latebloom.progress import RunBars
from latebloom.studies.local import run_all
from latebloom.training.checkpoint import write_json
from latebloom.training.environment import describe_environment
from latebloom.training.loop import BEYOND


def arms(seed: int) -> dict[str, RunConfig]:
    """The demo's two runs, and joint training at DAT's first rate with every asked position counting the same."""
    demo = demo_configs(seed)
    training = demo["joint"].training
    rate = replace(training.full, learning_rate=training.delayed.learning_rate)
    by_position = replace(training, weigh="positions", full=rate)
    return demo | {"joint-by-position": replace(demo["joint"], training=by_position)}


def main(seeds: int = 10, out: Path = Path("runs/demo-seeds"), results: Path = Path("results/demo-seeds.json")) -> None:
    """Train every arm for seeds 0, 1, ... and collect what each summary says."""
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        configs = arms(seed)
        length = configs["dat"].training.length
        with RunBars(list(configs), length, BEYOND) as bars:
            trained = run_all(configs, out / f"seed-{seed}", observe=bars.show)
        runs += [summarize(name, one) for name, one in trained.items()]
        results.parent.mkdir(parents=True, exist_ok=True)
        command = f"python -m latebloom.studies.demo_seeds --seeds {seeds}"
        where = {key: value for key, value in describe_environment(0, "cpu").items() if key not in ("seed", "command")}
        write_json(results, {"command": command, "environment": where, "runs": runs})


if __name__ == "__main__":
    tyro.cli(main)
