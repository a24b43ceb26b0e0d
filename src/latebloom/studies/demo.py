"""The demo's runs, and what is said of each: the paper's headline in small."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from latebloom.config import RunConfig, with_overrides
from latebloom.engine.loop import TrainedRun
from latebloom.recipes import recipe


def demo_configs(seed: int, overrides: Sequence[str] = ()) -> dict[str, RunConfig]:
    """Joint training and delayed attention; changes to the delay concern the second alone."""
    chosen = {"joint": recipe("demo-joint"), "dat": recipe("demo-dat")}
    return {
        name: with_overrides(
            replace(config, seed=seed), [o for o in overrides if name == "dat" or not o.startswith("delay")]
        )
        for name, config in chosen.items()
    }


def by_position(joint: RunConfig) -> RunConfig:
    """Joint training at the delay's rate with every asked position counting the same: a stronger baseline."""
    training = joint.training
    rate = replace(training.full, learning_rate=training.delayed.learning_rate)
    return replace(joint, training=replace(training, weigh="positions", full=rate))


def summarize(name: str, trained: TrainedRun) -> dict[str, Any]:
    """One run as the summary has it."""
    evaluation, result = trained.evaluation, trained.result
    accuracy: dict[str, dict[str, float]] = {"both": {str(count.length): count.accuracy for count in evaluation.counts}}
    for answer in evaluation.chance:
        accuracy[answer] = {str(count.length): count.accuracy_of(answer) for count in evaluation.counts}
    return {
        "name": name,
        "training_length": evaluation.training_length,
        "accuracy": accuracy,
        "reach": evaluation.reach,
        "cliff": evaluation.cliff,
        "parameters": result["parameters"],
        "steps": result["steps"],
        "switch_step": result["switch_step"],
        "seconds": result["seconds"],
        "seed": result["seed"],
    }
