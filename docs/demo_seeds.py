"""The demo over many seeds, and beside it a stronger joint baseline: the numbers behind the README.

    python docs/demo_seeds.py --seeds 10

Stopped and started again, it goes on where it was. `python docs/figures.py` then writes the table and the picture.
"""

from argparse import ArgumentParser
from pathlib import Path

from latebloom.engine.checkpoint import write_json
from latebloom.engine.environment import describe_environment
from latebloom.engine.loop import Progress
from latebloom.studies.demo import by_position, demo_configs, summarize
from latebloom.studies.local import run_all


def main(seeds: int, out: Path, results: Path) -> None:
    """Train every arm for seeds 0, 1, ... on every core, and collect what each summary says."""
    configs = {}
    for seed in range(seeds):
        arms = demo_configs(seed)
        arms["joint-by-position"] = by_position(arms["joint"])
        configs |= {f"seed-{seed}/{arm}": config for arm, config in arms.items()}

    def tell(name: str, seen: Progress) -> None:
        if seen.phase == "done" or seen.step % 300 == 0:
            print(f"{name}: step {seen.step}/{seen.steps}, {seen.phase}", flush=True)

    trained = run_all(configs, out, observe=tell)
    where = {key: value for key, value in describe_environment(0, "cpu").items() if key not in ("seed", "command")}
    results.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        results,
        {
            "command": f"python docs/demo_seeds.py --seeds {seeds}",
            "environment": where,
            "runs": [summarize(name.partition("/")[2], one) for name, one in trained.items()],
        },
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-seeds"), help="folder for the runs")
    parser.add_argument("--results", type=Path, default=Path("results/demo-seeds.json"), help="results file")
    main(**vars(parser.parse_args()))
