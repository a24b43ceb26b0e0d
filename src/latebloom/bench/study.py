"""A study as a user would run it: a hundred seeds, both ways of training, tested to sixteen times the length."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from latebloom.config import RunConfig
from latebloom.delay.triggers import at_step
from latebloom.engine.loop import Progress, run_stacked
from latebloom.evaluation.settings import Evaluating
from latebloom.recipes import recipe

MULTIPLES = (1, 2, 3, 4, 8, 16)


def study_config(name: str, steps: int) -> RunConfig:
    """A demo recipe with more steps, and enough keys for the longest test."""
    config = recipe(name)
    delay = None if config.delay is None else replace(config.delay, until=at_step(steps // 2))
    return replace(
        config,
        task=replace(config.task, keys=256),
        delay=delay,
        training=replace(config.training, steps=steps, log_every=100, check_every=1000),
        evaluation=Evaluating(multiples=MULTIPLES, sequences=1024),
    )


def hundred_seeds(device: torch.device, *, seeds: int, steps: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Train and test them all; minutes, and the accuracy that came out."""
    started = time.perf_counter()
    accuracy: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("demo-joint", "demo-dat"):
            begun = time.perf_counter()
            config = study_config(name, steps)
            first = "seed-0"

            def observe(run: str, seen: Progress, name: str = name, first: str = first) -> None:
                if run == first:
                    tell(f"{name}: step {seen.step} of {seen.steps}, {seen.phase}")

            configs = {f"seed-{seed}": replace(config, seed=seed) for seed in range(seeds)}
            outcome = run_stacked(configs, Path(folder) / name, device, observe=observe)
            evaluations = [trained.evaluation for trained in outcome.trained.values()]
            accuracy[name] = {
                f"{multiple}x": mean(e.accuracy(multiple * config.training.length) for e in evaluations)
                for multiple in MULTIPLES
            }
            seconds[name] = time.perf_counter() - begun
    return {
        "hundred_seed_minutes": (time.perf_counter() - started) / 60,
        "hundred_seed_study": {"seeds": seeds, "steps": steps, "seconds": seconds, "mean_accuracy": accuracy},
    }
