"""The benchmark on a GPU: stacked runs against single ones and JAX, the fused LSTM against cuDNN's, and a study."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from latebloom.bench.arms import captured, fused_lstms, library_lstms, single, stacked, textbook
from latebloom.bench.measure import LENGTH, Advance, Arm, Tell, bench_config, product_peak, step_operations, take_turns
from latebloom.config import RunConfig
from latebloom.delay.triggers import at_step
from latebloom.engine.loop import Progress, run_stacked
from latebloom.evaluation.settings import Evaluating
from latebloom.layers.precision import Precision, precision
from latebloom.recipes import recipe

SEEDS = 64
MULTIPLES = (1, 2, 3, 4, 8, 16)
"""Tested lengths of the study, in training lengths."""


def bench_gpu(
    device: torch.device, *, mode: Precision, seconds: float, growth: bool, peers: bool, tell: Tell
) -> dict[str, Any]:
    """Return every figure of the benchmark except the study of a hundred seeds."""
    with precision(mode):
        peak = product_peak(device, 8192)
        report: dict[str, Any] = {"precision": mode, "product_peak_tflops": peak / 1e12}
        report |= _steps(device, mode, seconds, peak, peers, tell)
        report["fused_lstm"] = {str(width): _lstms(device, width, seconds, tell) for width in (64, 128)}
        report["fused_lstm_ratio"] = report["fused_lstm"]["64"]["ratio_to_captured"]
        report["fused_lstm_ratio_128"] = report["fused_lstm"]["128"]["ratio_to_captured"]
        if growth:
            report["growth"] = _growth(device, mode, seconds, peak, tell)
    return report


def _steps(
    device: torch.device, mode: Precision, seconds: float, peak: float, peers: bool, tell: Tell
) -> dict[str, Any]:
    config = bench_config(precision=mode)
    arms = [
        Arm("eager single run", partial(single, config, LENGTH, device, capture=False)),
        Arm("textbook LSTM, eager single run", partial(textbook, config, LENGTH, device)),
        Arm("captured single run", partial(single, config, LENGTH, device, capture=True)),
        *(Arm(f"{n} stacked runs", partial(stacked, config, LENGTH, device, n), n) for n in (SEEDS, 4 * SEEDS)),
    ]
    eager, loop, alone, some, many = arms
    compile_seconds: dict[str, float] = {}

    def jax_program(runs: int) -> Advance:
        from latebloom.bench.jax_model import Stacked, gpu

        program = Stacked(config, LENGTH, runs, gpu(device.index or 0))
        compile_seconds[str(runs)] = program.compile_seconds
        return program.advance

    jax_arms = [Arm(f"JAX, {_runs(arm.runs)}", partial(jax_program, arm.runs), arm.runs) for arm in (alone, some, many)]
    arms += jax_arms if peers else []
    take_turns(arms, device, seconds=seconds, tell=tell)
    operations = step_operations(config, LENGTH)
    best = max(some, many, key=lambda arm: arm.per_second)
    report = {
        "arms": {arm.name: arm.to_json() | {"share_of_peak": operations * arm.per_second / peak} for arm in arms},
        "operations_of_a_step": operations,
        "seed_steps_per_second": best.per_second,
        "stacked_runs": best.runs,
        "ratio_to_eager": best.per_second / eager.per_second,
        "ratio_to_captured": best.per_second / alone.per_second,
        "ratio_to_textbook": best.per_second / loop.per_second,
        "price_of_64_seeds": min(some.seconds) / min(alone.seconds),
        "share_of_peak": operations * best.per_second / peak,
    }
    if peers:
        pairs = zip((alone, some, many), jax_arms, strict=True)
        report["ratio_to_jax"] = {str(ours.runs): ours.per_second / theirs.per_second for ours, theirs in pairs}
        report["jax"] = {"version": __import__("jax").__version__, "compile_seconds": compile_seconds}
    return report


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count > 1)}"


def _lstms(device: torch.device, width: int, seconds: float, tell: Tell) -> dict[str, Any]:
    shape = (width, SEEDS, 64, 25, device)
    arms = [
        Arm(f"{SEEDS} library LSTMs, width {width}", lambda: library_lstms(*shape), SEEDS),
        Arm(f"the same, captured, width {width}", lambda: captured(library_lstms(*shape), device), SEEDS),
        Arm(f"the fused LSTM, captured, width {width}", lambda: captured(fused_lstms(*shape), device), SEEDS),
    ]
    take_turns(arms, device, seconds=seconds / 2, tell=tell)
    eager, library, fused = arms
    return {
        "arms": {arm.name: arm.to_json() for arm in arms},
        "ratio_to_eager": fused.per_second / eager.per_second,
        "ratio_to_captured": fused.per_second / library.per_second,
    }


def _growth(device: torch.device, mode: Precision, seconds: float, peak: float, tell: Tell) -> list[dict[str, Any]]:
    """Return a stack's speed for several numbers of runs, widths and lengths, one of them changed at a time."""
    settings = [{"runs": runs} for runs in (4, 16, 64, 256)]
    settings += [{"width": width} for width in (32, 128)]
    settings += [{"length": length} for length in (7, 31, 63)]
    arms, counted = [], []
    for changes in settings:
        runs, length = changes.pop("runs", SEEDS), changes.get("length", LENGTH)
        config = bench_config(precision=mode, **changes)
        about = {"runs": runs, "width": config.model.width, "tokens": config.task.token_count(length)}
        name = "{runs} runs, width {width}, {tokens} tokens".format(**about)
        arms.append(Arm(name, partial(stacked, config, length, device, runs), runs))
        counted.append(about | {"operations": step_operations(config, length)})
    take_turns(arms, device, seconds=seconds / 2, tell=tell)
    return [
        about | arm.to_json() | {"share_of_peak": about["operations"] * arm.per_second / peak}
        for arm, about in zip(arms, counted, strict=True)
    ]


def _study_config(name: str, steps: int) -> RunConfig:
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
    """Train and test joint and delayed runs of a study; return the minutes it took and the mean accuracy."""
    accuracy: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        for name in ("demo-joint", "demo-dat"):
            started = time.perf_counter()
            config = _study_config(name, steps)

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
