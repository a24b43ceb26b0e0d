"""The benchmark of recurrences: a training step of the hybrid with each of them, relative to the LSTM's."""

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from latebloom.bench.arms import single, stacked
from latebloom.bench.measure import LENGTH, Arm, Tell, take_turns
from latebloom.components import origin_of
from latebloom.config import RunConfig
from latebloom.engine.process_state import keep_freed_memory
from latebloom.layers.precision import precision
from latebloom.layers.recurrence import Recurrence

RUNS = 64
"""Stacked runs on a GPU."""
BASE = "lstm"


def bench_recurrences(config: RunConfig, device: torch.device, *, seconds: float, tell: Tell) -> dict[str, Any]:
    """Return the step time of every recurrence of this package, and its ratio to the LSTM's, all timed in turn.

    On a CPU one run with one thread is timed; on a GPU one captured run, and 64 stacked runs.
    """
    arms: dict[str, dict[str, Arm]] = {}
    sizes = {}
    for name, member in Recurrence.choices().items():
        if origin_of(member) is not None:
            continue
        recurrence = Recurrence.named(name)
        run = replace(config, model=replace(config.model, recurrence=recurrence))
        sizes[name] = recurrence.state_size(run.model.width)
        arms[name] = {"one run": Arm(name, partial(single, run, LENGTH, device, capture=device.type == "cuda"))}
        if device.type == "cuda" and run.model.can_be_stacked:
            many = f"{RUNS} stacked runs"
            arms[name][many] = Arm(f"{name}, {many}", partial(stacked, run, LENGTH, device, RUNS), RUNS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with precision(config.training.precision), keep_freed_memory():
            take_turns([arm for each in arms.values() for arm in each.values()], device, seconds=seconds, tell=tell)
    finally:
        torch.set_num_threads(threads)
    return {
        "recurrences": {
            name: {
                "state_size": sizes[name],
                "arms": {kind: arm.to_json() for kind, arm in each.items()},
                "ratio_to_lstm": {kind: _ratio(arm, arms[BASE][kind]) for kind, arm in each.items()},
            }
            for name, each in arms.items()
        }
    }


def _ratio(arm: Arm, base: Arm) -> float:
    """Return the median over turns of the ratio of step times."""
    return median(one / other for one, other in zip(arm.seconds, base.seconds, strict=True))
