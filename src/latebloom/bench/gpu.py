"""The benchmark on a GPU: stacked runs against single ones, and the fused LSTM against the library's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from latebloom.bench.arms import captured, fused_lstms, library_lstms, single, stacked, textbook
from latebloom.bench.measure import Arm, product_peak, take_turns
from latebloom.bench.settings import LENGTH, bench_config
from latebloom.bench.work import step_operations
from latebloom.layers.precision import Precision, precision

Tell = Callable[[str], None]
SEEDS = 64
TURNS = 5


def bench_gpu(device: torch.device, *, mode: Precision, seconds: float, growth: bool, tell: Tell) -> dict[str, Any]:
    """Every figure of the benchmark but the study of a hundred seeds."""
    with precision(mode):
        peak = product_peak(device, 8192)
        report: dict[str, Any] = {"precision": mode, "product_peak_tflops": peak / 1e12}
        report |= _steps(device, mode, seconds, peak, tell)
        report["fused_lstm"] = {str(width): _lstms(device, width, seconds, tell) for width in (64, 128)}
        for width, figures in report["fused_lstm"].items():
            suffix = "" if width == "64" else f"_{width}"
            report[f"fused_lstm_ratio{suffix}"] = figures["ratio_to_captured"]
        if growth:
            report["growth"] = _growth(device, mode, seconds, peak, tell)
    return report


def _steps(device: torch.device, mode: Precision, seconds: float, peak: float, tell: Tell) -> dict[str, Any]:
    config = bench_config(precision=mode)
    arms = [
        Arm("eager single run", partial(single, config, LENGTH, device, capture=False)),
        Arm("textbook LSTM, eager single run", partial(textbook, config, LENGTH, device)),
        Arm("captured single run", partial(single, config, LENGTH, device, capture=True)),
        Arm(f"{SEEDS} stacked runs", partial(stacked, config, LENGTH, device, SEEDS), SEEDS),
        Arm(f"{4 * SEEDS} stacked runs", partial(stacked, config, LENGTH, device, 4 * SEEDS), 4 * SEEDS),
    ]
    take_turns(arms, device, turns=TURNS, seconds=seconds, tell=tell)
    eager, loop, alone, some, many = arms
    operations = step_operations(config, LENGTH)
    best = max(some, many, key=lambda arm: arm.per_second)
    return {
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


def _lstms(device: torch.device, width: int, seconds: float, tell: Tell) -> dict[str, Any]:
    shape = (width, SEEDS, 64, 25, device)
    arms = [
        Arm(f"{SEEDS} library LSTMs, width {width}", lambda: library_lstms(*shape), SEEDS),
        Arm(f"the same, captured, width {width}", lambda: captured(library_lstms(*shape), device), SEEDS),
        Arm(f"the fused LSTM, captured, width {width}", lambda: captured(fused_lstms(*shape), device), SEEDS),
    ]
    take_turns(arms, device, turns=TURNS, seconds=seconds / 2, tell=tell)
    eager, library, fused = arms
    return {
        "arms": {arm.name: arm.to_json() for arm in arms},
        "ratio_to_eager": fused.per_second / eager.per_second,
        "ratio_to_captured": fused.per_second / library.per_second,
    }


def _growth(device: torch.device, mode: Precision, seconds: float, peak: float, tell: Tell) -> list[dict[str, Any]]:
    """How a stack's speed changes with seeds, width and length, each alone."""
    settings = [{"runs": runs} for runs in (4, 16, 64, 256)]
    settings += [{"width": width} for width in (32, 128)]
    settings += [{"length": length} for length in (7, 31, 63)]
    arms, counted = [], []
    for changes in settings:
        runs, length = changes.pop("runs", SEEDS), changes.get("length", LENGTH)
        config = bench_config(precision=mode, **changes)
        tokens = config.task.token_count(length)
        name = f"{runs} runs, width {config.model.width}, {tokens} tokens"
        arms.append(Arm(name, partial(stacked, config, length, device, runs), runs))
        counted.append(
            {"runs": runs, "width": config.model.width, "tokens": tokens, "operations": step_operations(config, length)}
        )
    take_turns(arms, device, turns=TURNS, seconds=seconds / 2, tell=tell)
    return [
        about | arm.to_json() | {"share_of_peak": about["operations"] * arm.per_second / peak}
        for about, arm in zip(counted, arms, strict=True)
    ]
