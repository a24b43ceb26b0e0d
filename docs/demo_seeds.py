"""The demo over many seeds, and beside it a stronger joint baseline: the numbers behind the README.

    python docs/demo_seeds.py --seeds 10

Stopped and started again, it goes on where it was. `python docs/figures.py` then writes the table and the picture.
"""

from pathlib import Path
from typing import Any

import tyro

from latebloom.evaluation.result import CLAIM
from latebloom.progress import RunBars
from latebloom.studies.demo import by_position, demo_configs, summarize
from latebloom.studies.local import run_all
from latebloom.training.checkpoint import write_json
from latebloom.training.environment import describe_environment


def main(seeds: int = 10, out: Path = Path("runs/demo-seeds"), results: Path = Path("results/demo-seeds.json")) -> None:
    """Train every arm for seeds 0, 1, ... and collect what each summary says."""
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        configs = demo_configs(seed)
        configs["joint-by-position"] = by_position(configs["joint"])
        with RunBars(list(configs), configs["dat"].training.length, CLAIM) as bars:
            trained = run_all(configs, out / f"seed-{seed}", observe=bars.show)
        runs += [summarize(name, one) for name, one in trained.items()]
        results.parent.mkdir(parents=True, exist_ok=True)
        where = {key: value for key, value in describe_environment(0, "cpu").items() if key not in ("seed", "command")}
        command = f"python docs/demo_seeds.py --seeds {seeds}"
        write_json(results, {"command": command, "environment": where, "runs": runs})


if __name__ == "__main__":
    tyro.cli(main)
