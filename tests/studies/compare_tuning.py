"""Compare tuning in rounds with the full grid, on the grid of the study `paper` made small; minutes of one core.

    python tests/studies/compare_tuning.py results/tuning-rounds.json

Both ways choose among the same settings on the same held-out seeds, and train what they chose on the reported seeds.
The file has the seed-steps of both, what each chose, and the accuracy of the choices beyond the training length.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from latebloom import ModularSum, RunConfig, run
from latebloom.delay.triggers import at_step
from latebloom.engine.environment import describe_environment
from latebloom.engine.files import write_json
from latebloom.engine.loop import run_until
from latebloom.results.file import read_results
from latebloom.studies.execute import execute
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.plan import Arm, Plan, Round
from latebloom.studies.stacks import NO_STOPS, Configs, Stops

ARMS = ("joint", "dat")
STEPS, WIDTH, LENGTH = 240, 16, 5
SEEDS, TUNING = range(6), (1_000, 1_001)
ROUNDS = (Round(seeds=TUNING, share=0.2), Round(share=0.35), Round(share=0.6), Round())


def small(config: RunConfig) -> RunConfig:
    """Return a run of the study in small: the parity of up to five digits, with the settings that are tuned."""
    training = config.training
    phases = {name: replace(getattr(training, name), batch_size=32, warmup=20) for name in ("delayed", "full")}
    every = {"log_every": 60, "check_every": STEPS, "checkpoint_every": STEPS}
    return replace(
        config,
        task=ModularSum(modulus=2),
        model=replace(config.model, width=WIDTH, blocks=2),
        delay=config.delay and replace(config.delay, until=at_step(STEPS // 2)),
        training=replace(training, steps=STEPS, length=LENGTH, **phases, **every),
        evaluation=replace(config.evaluation, multiples=(1, 2, 3, 4), sequences=128),
    )


def small_arms() -> list[Arm]:
    """Return arms of the study with their whole grid."""
    arms = plan_of(find_study("paper"), "paper").arms
    chosen = [arm for arm in arms if arm.task == ModularSum.name and arm.name in ARMS]
    return [Arm(arm.name, small(arm.config), tuple(map(small, arm.choices))) for arm in chosen]


def train_in_turn(configs: Configs, folder: Path, stops: Stops = NO_STOPS) -> dict[str, str]:
    """Train runs in this process, one after the other."""
    for name, config in configs.items():
        if name in stops:
            run_until(config, folder / name, stops[name], device="cpu")
        else:
            run(config, folder / name, device="cpu")
    return {}


def tune(plan: Plan, out: Path) -> dict[str, Any]:
    """Return the seed-steps of tuning and, for each arm, the choice and its accuracy on the reported seeds."""
    outcome = execute("tuning", plan, out, train_in_turn)
    begun, going_on = plan.tuning_steps()
    reported = read_results([outcome.results])
    arms, trained = {}, 0
    for entry in json.loads((out / "choices.json").read_text()):
        trained += sum(one.get("steps", STEPS) * one["seeds"] for one in entry["choices"])
        beyond = [one.evaluation.mean_beyond for one in reported if one.arm == entry["arm"] and one.evaluation]
        arms[entry["arm"]] = {
            "chosen": entry["chosen"],
            "changes": entry["choices"][entry["chosen"]]["changes"],
            "rounds_ranked_by": [one["ranked_by"] for one in entry["choices"][entry["chosen"]].get("rounds", ())],
            "steps_of_choices": [one.get("steps", STEPS) for one in entry["choices"]],
            "scores_of_choices": [round(one["accuracy_beyond"], 4) for one in entry["choices"]],
            "reported": [round(one, 4) for one in beyond],
            "reported_mean": round(mean(beyond), 4),
        }
    return {"tuning_seed_steps": trained, "planned_seed_steps": sum(begun) + going_on, "arms": arms}


def main() -> None:
    torch.set_num_threads(1)
    arms = small_arms()
    with TemporaryDirectory() as place:
        full = tune(Plan(arms, SEEDS, tuning_seeds=TUNING), Path(place) / "full")
        rounds = tune(Plan(arms, SEEDS, rounds=ROUNDS), Path(place) / "rounds")
    share = rounds["tuning_seed_steps"] / full["tuning_seed_steps"]
    for arm in ARMS:
        scores = full["arms"][arm]["scores_of_choices"]
        rounds["arms"][arm]["rank_in_the_full_grid"] = 1 + sum(
            s > scores[rounds["arms"][arm]["chosen"]] for s in scores
        )
    about = {"environment": describe_environment(0, "cpu"), "share_of_seed_steps": round(share, 4)}
    write_json(Path(sys.argv[1]), about | {"full_grid": full, "rounds": rounds})


if __name__ == "__main__":
    main()
