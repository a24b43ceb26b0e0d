"""The benchmark on a CPU: one process of one thread per core against one process with all the threads."""

import os
import time
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch

from latebloom.bench.arms import jax_lstm, latebloom_lstm, layer_inputs, single, textbook
from latebloom.bench.measure import LENGTH, TURNS, Advance, Tell, bench_config, product_peak, step_operations, timed
from latebloom.engine.process_state import keep_freed_memory
from latebloom.studies.local import process_context

CPU = torch.device("cpu")
LAYERS = {"Latebloom": latebloom_lstm, "JAX": jax_lstm}


def bench_cpu(cores: int, *, seconds: float, peers: bool, tell: Tell) -> dict[str, Any]:
    """Return steps per second of each arm, timed in turn, their ratios, and the share of the matrix-product peak."""
    arms: dict[str, list[dict[str, Any]]] = {
        "one process, all threads": [{"threads": cores}],
        "one process a core": [{"threads": 1}] * cores,
        "one process, one thread": [{"threads": 1}],
        "the same, width 128": [{"threads": 1, "width": 128}],
        "the same, textbook LSTM": [{"threads": 1, "textbook": True}],
        **{f"an LSTM layer, {name}": [{"threads": 1, "layer": name}] for name in LAYERS if peers},
    }
    rates: dict[str, list[float]] = {name: [] for name in arms}
    peaks: dict[str, list[float]] = {name: [] for name in arms}
    with ExitStack() as processes:
        workers = {
            name: [processes.enter_context(start_worker(**settings)) for settings in each]
            for name, each in arms.items()
        }
        tell("starting")
        wait([worker.submit(take_turn, 1e-3) for each in workers.values() for worker in each])
        for turn in range(TURNS):
            for name, each in workers.items():
                tell(f"{name}: turn {turn + 1} of {TURNS}")
                answers = [turn.result() for turn in [worker.submit(take_turn, seconds) for worker in each]]
                rates[name].append(sum(rate for rate, _ in answers))
                peaks[name].append(sum(peak for _, peak in answers))

    def share(name: str, width: int) -> dict[str, float]:
        # Turn by turn: what the step could have reached is the machine's peak at that moment.
        operations = step_operations(bench_config(width=width), LENGTH)
        return _best([operations * rate / peak for rate, peak in zip(rates[name], peaks[name], strict=True)])

    def ratio(name: str, other: str) -> dict[str, float]:
        return _best([a / b for a, b in zip(rates[name], rates[other], strict=True)])

    return {
        "cores": cores,
        "steps_per_second": {name: _best(each) for name, each in rates.items()},
        "processes_over_threads": ratio("one process a core", "one process, all threads"),
        "share_of_peak": {"64": share("one process, one thread", 64), "128": share("the same, width 128", 128)},
        "ratio_to_textbook": ratio("one process, one thread", "the same, textbook LSTM")["median"],
        "ratio_to_peers": {"JAX": ratio("an LSTM layer, Latebloom", "an LSTM layer, JAX")["median"]} if peers else {},
    }


def _best(values: list[float]) -> dict[str, float]:
    return {"maximum": max(values), "median": median(values)}


def start_worker(**settings: Any) -> ProcessPoolExecutor:
    """Return a process with a run of its own, which `take_turn` times."""
    return ProcessPoolExecutor(1, process_context(), _build, (settings,))


_process = ExitStack()
_advance: Advance
"""What this worker process times."""


def _build(settings: dict[str, Any]) -> None:
    global _advance
    _process.enter_context(keep_freed_memory())  # as in a run
    torch.set_num_threads(settings["threads"])
    config = bench_config(width=settings.get("width", 64))
    if "layer" in settings:
        if hasattr(os, "sched_setaffinity"):  # not every library can be limited to one thread, but to one core
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        _advance = LAYERS[settings["layer"]](*layer_inputs(64))
    elif "textbook" in settings:
        _advance = textbook(config, LENGTH, CPU)
    else:
        _advance = single(config, LENGTH, CPU, capture=False)
    timed(_advance, 3, CPU)  # cold


def take_turn(seconds: float) -> tuple[float, float]:
    """Return steps per second, and the operations per second of a matrix product just after them."""
    steps, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        _advance()
        steps += 1
    return steps / passed, product_peak(CPU, 1024, seconds)
