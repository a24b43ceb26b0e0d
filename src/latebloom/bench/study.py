"""The time of a whole study: a hundred seeds of joint and of delayed training, tested to 16 times the length."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from latebloom.bench.measure import Tell
from latebloom.config import RunConfig
from latebloom.delay.triggers import at_step
from latebloom.engine.loop import Progress, run_stacked
from latebloom.evaluation.settings import Evaluating
from latebloom.recipes import recipe

MULTIPLES = (1, 2, 3, 4, 8, 16)


def study_config(name: str, steps: int) -> RunConfig:
    """Return a demo recipe with more steps, and enough keys for the longest test."""
    config = recipe(name)
    delay = None if config.delay is None else replace(config.delay, until=at_step(steps // 2))
    return replace(
        config,
        task=replace(config.task, keys=256),
        delay=delay,
        training=replace(config.training, steps=steps, log_every=100, check_every=1000),
        evaluation=Evaluating(multiples=MULTIPLES, sequences=1024),
    )


def hundred_seeds(device: torch.device, *, seeds: int, steps: int, tell: Tell) -> dict[str, Any]:
    """Train and test all runs; return the minutes it took and the mean accuracy."""
    accuracy: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("demo-joint", "demo-dat"):
            started = time.perf_counter()
            config = study_config(name, steps)

            def observe(run: str, seen: Progress, name: str = name) -> None:
                if run == "seed-0":
                    tell(f"{name}: step {seen.step} of {seen.steps}, {seen.phase}")

            configs = {f"seed-{seed}": replace(config, seed=seed) for seed in range(seeds)}
            outcome = run_stacked(configs, Path(folder) / name, device, observe=observe)
            evaluations = [trained.evaluation for trained in outcome.trained.values()]
            accuracy[name] = {
                f"{multiple}x": mean(e.accuracy(multiple * config.training.length) for e in evaluations)
                for multiple in MULTIPLES
            }
            seconds[name] = time.perf_counter() - started
    return {
        "hundred_seed_minutes": sum(seconds.values()) / 60,
        "hundred_seed_study": {"seeds": seeds, "steps": steps, "seconds": seconds, "mean_accuracy": accuracy},
    }
