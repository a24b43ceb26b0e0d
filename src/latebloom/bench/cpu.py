"""The benchmark on a CPU: a process of one thread for every core, against one process with all the threads."""

import multiprocessing as mp
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from latebloom.bench.arms import single, textbook
from latebloom.bench.measure import product_peak
from latebloom.bench.peers import installed_peers, latebloom_lstm, layer_inputs
from latebloom.bench.settings import LENGTH, bench_config
from latebloom.bench.work import step_operations
from latebloom.engine.surroundings import memory_kept

Tell = Callable[[str], None]
TURNS = 5
CPU = torch.device("cpu")


def bench_cpu(cores: int, *, seconds: float, peers: bool = False, tell: Tell) -> dict[str, Any]:
    """Steps a second of each way, taken in turns; ratios between them; the share of the machine's product peak."""
    layers = ["Latebloom", *installed_peers()] if peers else []
    ways: dict[str, list[dict[str, Any]]] = {
        "one process, all threads": [{"threads": cores}],
        "one process a core": [{"threads": 1}] * cores,
        "one process, one thread": [{"threads": 1}],
        "the same, width 128": [{"threads": 1, "width": 128}],
        "the same, textbook LSTM": [{"threads": 1, "textbook": True}],
        **{f"an LSTM layer, {name}": [{"threads": 1, "layer": name}] for name in layers},
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, list[float]] = {name: [] for name in ways}
    crews = {name: [Worker(**about) for about in workers] for name, workers in ways.items()}
    try:
        tell("starting")
        for worker in (worker for crew in crews.values() for worker in crew):
            worker.wait()
        for turn in range(TURNS):
            for name, crew in crews.items():
                tell(f"{name}: turn {turn + 1} of {TURNS}")
                for worker in crew:
                    worker.start(seconds)
                answers = [worker.answer() for worker in crew]
                rates[name].append(sum(steps for steps, _ in answers))
                peaks[name].append(sum(peak for _, peak in answers))
    finally:
        for crew in crews.values():
            for worker in crew:
                worker.stop()
    # A share is taken turn by turn: the machine's peak at that moment is what the step could have had.
    shares = {}
    for name, width in (("one process, one thread", 64), ("the same, width 128", 128)):
        operations = step_operations(bench_config(width=width), LENGTH)
        shares[width] = [operations * r / p for r, p in zip(rates[name], peaks[name], strict=True)]
    apart, together = rates["one process a core"], rates["one process, all threads"]
    ratios = [a / b for a, b in zip(apart, together, strict=True)]
    ours, *theirs = [rates[f"an LSTM layer, {name}"] for name in layers] or [[]]
    return {
        "cores": cores,
        "steps_per_second": {name: {"maximum": max(r), "median": median(r)} for name, r in rates.items()},
        "processes_over_threads": {"maximum": max(ratios), "median": median(ratios)},
        "share_of_peak": {str(width): {"maximum": max(s), "median": median(s)} for width, s in shares.items()},
        "ratio_to_textbook": median(
            a / b for a, b in zip(rates["one process, one thread"], rates["the same, textbook LSTM"], strict=True)
        ),
        "ratio_to_peers": {
            name: median(a / b for a, b in zip(ours, their, strict=True))
            for name, their in zip(layers[1:], theirs, strict=True)
        },
    }


class Worker:
    """A process with a run of its own, which steps when it is told to."""

    def __init__(self, **about: Any) -> None:
        context = mp.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, about), daemon=True)
        self._process.start()
        self._is_ready = False

    def wait(self) -> None:
        """Until it has a run and has warmed up."""
        if not self._is_ready:
            self._pipe.recv()
            self._is_ready = True

    def start(self, seconds: float) -> None:
        self.wait()
        self._pipe.send(seconds)

    def answer(self) -> tuple[float, float]:
        """Steps a second, and the operations a second of a matrix product just after them."""
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(10)


def _work(pipe: Connection, about: dict[str, Any]) -> None:
    torch.set_num_threads(about["threads"])
    advance = _layer(about["layer"]) if "layer" in about else _run(about)
    with memory_kept():  # as a run has it
        for _ in range(3):
            advance()
        pipe.send("ready")
        while (seconds := pipe.recv()) is not None:
            steps, started = 0, time.perf_counter()
            while time.perf_counter() - started < seconds:
                advance()
                steps += 1
            rate = steps / (time.perf_counter() - started)
            pipe.send((rate, product_peak(CPU, 1024)))


def _run(about: dict[str, Any]) -> Callable[[], Any]:
    config = bench_config(width=about.get("width", 64))
    return textbook(config, LENGTH, CPU) if about.get("textbook") else single(config, LENGTH, CPU, capture=False)


def _layer(name: str) -> Callable[[], Any]:
    if hasattr(os, "sched_setaffinity"):  # not every library can be told to take one thread, but a core is a core
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    build = latebloom_lstm if name == "Latebloom" else installed_peers()[name]
    return build(*layer_inputs(64))
