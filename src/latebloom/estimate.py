"""About how long runs take on this machine, from a few measured steps and tests. Nothing is kept or written."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import torch

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.memory import runs_that_fit
from latebloom.engine.pause import Stop, step_reached
from latebloom.engine.process_state import keep_freed_memory, preserve_torch_state
from latebloom.engine.stacks import stack_key
from latebloom.engine.trainer import CHECK_SEQUENCES, Trainer
from latebloom.evaluation.evaluate import evaluate_each
from latebloom.layers.precision import precision
from latebloom.studies.beginnings import find_forks
from latebloom.studies.stacks import NO_STOPS, Stops, plan_waves

SECONDS = 2.0
"""How long the steps of a phase are measured; the first half of them does not count."""
SHORTEST = 0.3
"""How long they are measured at least, where there are many kinds of runs."""
PROBES = 3
"""How often interference is measured."""
TEST_SEQUENCES = 64
"""Sequences per length in the measurement of a test on a CPU."""

START_FIRST_WORKER, START_WORKER = 4.5, 0.3
"""Seconds until the first process of many runs has imported torch, and until a later one trains."""


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as 1.5 hours."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} seconds"


def switch_step(config: RunConfig) -> int:
    """Return the step of the switch, or the latest one; 0 for joint training."""
    return 0 if config.delay is None else config.delay.until.latest_step(config.training.steps)


def _kind(configs: list[RunConfig], holding: bool) -> object:
    """Return what decides how long a step of these runs takes."""
    parts = {
        (stack_key(one).hash, one.delay.hold if holding and one.delay else "none", one.training.state_noise > 0)
        for one in configs
    }
    return frozenset(parts), len(configs)


class Estimator:
    """Measures each kind of run once, and adds up how long a set of runs takes."""

    def __init__(self, device: torch.device, workers: int | None = None) -> None:
        """Estimate for `workers` processes of one thread each, or for one run in this process."""
        self.device, self.workers = device, workers
        self._measured: dict[object, tuple[float, float]] = {}
        self._budget = SECONDS

    def seconds(self, runs: Mapping[str, RunConfig], folder: Path, stops: Stops = NO_STOPS) -> float:
        """Return the seconds that these unfinished runs in `folder/NAME` take together, to their end or their pause;
        what they share is counted once."""
        begun = {name: step_reached(RunFolder(folder / name)) for name in runs}
        forked = {one.target: one.step for one in find_forks(runs, stops) if not begun[one.target]}
        if self.device.type == "cuda" and len(runs) > 1:
            waves = plan_waves(dict(runs), folder, lambda config, wanted: runs_that_fit(config, self.device), stops)
            # A stack in which some runs are forked later is smaller until then: its mean size decides.
            programs = [(list(wave), round(mean(forked.get(name, 0) for name in wave))) for wave in waves]
        else:
            programs = [([name], max(begun[name], forked.get(name, 0))) for name in runs]
        work = [([runs[name] for name in names], done, stops.get(names[0])) for names, done in programs]
        kinds = {_kind(configs, holding) for configs, _, _ in work for holding in (False, True)}
        self._budget = max(SHORTEST, 2 * SECONDS / max(2, len(kinds)))
        each = [self._program(*one) for one in work]
        if self.device.type == "cuda":
            return sum(each)
        if self.workers is not None:
            each = [seconds + START_WORKER for seconds in each]
        return max(sum(each) / (self.workers or 1), *each)

    def _program(self, configs: list[RunConfig], done: int, stop: Stop | None) -> float:
        """Return the seconds of runs that are trained as one program, from step `done` on."""
        config = configs[0]
        steps = config.training.steps if stop is None else stop.step
        switch = min(max(switch_step(one) for one in configs), steps)
        step, token = self._measure(configs, holding=False)
        total = step * (steps - max(switch, done))
        if switch > done:
            total += (switch - done) * self._measure(configs, holding=True)[0]
        check = CHECK_SEQUENCES * sum(map(config.task.token_count, config.watched_lengths))
        test = config.evaluation.sequences * sum(map(config.task.token_count, config.test_lengths))
        if every := config.training.probe_every:
            total += self._measure_probe(configs) * (steps // every - done // every)
        return total + token * (check * ((steps - done) // config.training.check_every) + test)

    def _measure(self, configs: list[RunConfig], *, holding: bool) -> tuple[float, float]:
        """Return the seconds of a step, during the delay or after it, and of a tested token."""
        kind = _kind(configs, holding)
        if kind not in self._measured:
            chosen = configs if holding else [replace(config, delay=None) for config in configs]
            with self._as_in_training(chosen) as trainer:
                self._measured[kind] = self._step(trainer, chosen), 0.0 if holding else self._token(trainer, chosen[0])
        return self._measured[kind]

    def _measure_probe(self, configs: list[RunConfig]) -> float:
        """Return the seconds of a measurement of interference; the first one, which may be captured, does not count."""
        kind = _kind(configs, False), "probe"
        if kind not in self._measured:
            with self._as_in_training([replace(config, delay=None) for config in configs]) as trainer:
                self._measured[kind] = min(self._time(trainer.interference) for _ in range(PROBES)), 0.0
        return self._measured[kind][0]

    @contextmanager
    def _as_in_training(self, configs: list[RunConfig]) -> Iterator[Trainer]:
        """Yield a trainer, with the threads and the precision of training; leave the process as it was."""
        with ExitStack() as before:
            before.callback(torch.set_num_threads, torch.get_num_threads())
            if self.workers is not None:
                torch.set_num_threads(1)
            before.enter_context(preserve_torch_state(self.device))
            before.enter_context(precision(configs[0].training.precision))
            if self.device.type == "cpu":
                before.enter_context(keep_freed_memory())
            yield Trainer(configs, self.device)

    def _step(self, trainer: Trainer, configs: list[RunConfig]) -> float:
        """Return the median seconds of a step before the first switch."""
        last = min(switch_step(config) or config.training.steps for config in configs)
        times: list[float] = []
        began = time.perf_counter()
        while not times or (time.perf_counter() - began < self._budget and len(times) < last - 1):
            times.append(self._time(trainer.advance))
        return median(times[len(times) // 2 :])

    def _token(self, trainer: Trainer, config: RunConfig) -> float:
        """Return the seconds of a token in a test of all models."""
        task, lengths, sequences = config.task, config.test_lengths, config.evaluation.sequences
        sequences = sequences if self.device.type == "cuda" else min(sequences, TEST_SEQUENCES)
        settings = {"training_length": config.training.length, "sequences": sequences, "seeds": trainer.seeds}
        with trainer.current_gates() as each:
            seconds = self._time(lambda: evaluate_each(each, task, lengths, device=self.device, **settings))
        return seconds / (sequences * sum(map(task.token_count, lengths)))

    def _time(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began
