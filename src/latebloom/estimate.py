"""About how long runs take on this machine, from a few measured steps and tests. Nothing is kept or written."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.folder import RunFolder
from latebloom.engine.memory import runs_that_fit
from latebloom.engine.stacks import stack_key
from latebloom.engine.surroundings import memory_kept, own_torch_state
from latebloom.engine.trainer import CHECK_SEQUENCES, Trainer
from latebloom.evaluation.evaluate import evaluate
from latebloom.kernels.precision import precision
from latebloom.models.sequence_model import SequenceModel
from latebloom.studies.stacks import plan_waves

SECONDS = 2.0
"""How long the steps of a phase are measured; the first half of them does not count."""
SHORTEST = 0.3
"""How long they are measured at least, where there are many kinds of runs."""
TEST_SEQUENCES = 64
"""Sequences per length in the measurement of a test on a CPU."""


def step_reached(folder: Path) -> int:
    """Return the step of the newest checkpoint of a run, or 0."""
    checkpoint = latest_checkpoint(RunFolder(folder).checkpoints)
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def in_words(seconds: float) -> str:
    """Return a duration as a person would say it."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} seconds"


class Estimator:
    """Measures each kind of run once, and adds up how long a set of runs takes."""

    def __init__(self, device: torch.device, workers: int | None = None) -> None:
        """Estimate for `workers` processes of one thread each, or for one run in this process."""
        self.device, self.workers = device, workers
        self._measured: dict[tuple[object, ...], float] = {}
        self._budget = SECONDS

    def seconds(self, runs: Mapping[str, RunConfig], folder: Path) -> float:
        """Return the seconds that the rest of the runs in `folder/NAME` take together."""
        left = {name: config for name, config in runs.items() if not RunFolder(folder / name).is_finished}
        kinds = {self._kind(config, holding, 1) for config in left.values() for holding in (False, True)}
        self._budget = max(SHORTEST, 2 * SECONDS / max(2, len(kinds)))
        if self.device.type == "cuda" and len(left) > 1:
            waves = plan_waves(left, folder, lambda config: runs_that_fit(config, self.device))
            return sum(self._program(list(wave.values())) for wave in waves)
        each = [self._program([config], step_reached(folder / name)) for name, config in left.items()]
        return max([sum(each) / (self.workers or 1), *each])

    def _program(self, configs: list[RunConfig], done: int = 0) -> float:
        """Return the seconds of runs that are trained as one program, from step `done` on."""
        config = max(configs, key=lambda config: config.delay is not None)
        steps, count = config.training.steps, len(configs)
        switch = 0 if config.delay is None else config.delay.until.latest_step(steps)
        delayed, full = max(0, switch - done), steps - max(switch, done)
        total = (delayed * self._step(config, True, count) if delayed else 0.0) + (
            full * self._step(config, False, count) if full else 0.0
        )
        check = CHECK_SEQUENCES * sum(map(config.task.token_count, config.watched_lengths))
        test = config.evaluation.sequences * sum(map(config.task.token_count, config.test_lengths))
        tokens = check * ((steps - done) // config.training.check_every) + test
        return total + count * tokens * self._token(config)

    def _kind(self, config: RunConfig, holding: bool, count: int) -> tuple[object, ...]:
        hold = config.delay.hold if config.delay is not None and holding else "none"
        return stack_key(config).hash, hold, config.training.state_noise > 0, count

    def _step(self, config: RunConfig, holding: bool, count: int) -> float:
        """Return the seconds of a step during the delay, or after it."""
        key = self._kind(config, holding, count)
        if key not in self._measured:
            config = config if holding else replace(config, delay=None)
            steps = (
                config.training.steps if config.delay is None else config.delay.until.latest_step(config.training.steps)
            )
            self._measured[key] = self._measure_step([replace(config, seed=seed) for seed in range(count)], steps)
        return self._measured[key]

    def _measure_step(self, configs: list[RunConfig], last: int) -> float:
        """Return the median time of the steps before `last`, done by the trainer itself."""
        times: list[float] = []
        with self._as_in_training(configs[0]):
            trainer = Trainer(configs, self.device)
            began = time.perf_counter()
            while not times or (time.perf_counter() - began < self._budget and len(times) < last - 1):
                times.append(self._time(trainer.advance))
        return median(times[len(times) // 2 :])

    def _token(self, config: RunConfig) -> float:
        """Return the seconds per token of a test."""
        key = (stack_key(config).hash, "test")
        if key not in self._measured:
            task, lengths, sequences = config.task, config.test_lengths, config.evaluation.sequences
            sequences = sequences if self.device.type == "cuda" else min(sequences, TEST_SEQUENCES)
            with self._as_in_training(config):
                model = SequenceModel(config.model, task.vocabulary_size).to(self.device)
                seconds = self._time(lambda: evaluate(model, task, lengths, training_length=1, sequences=sequences))
            self._measured[key] = seconds / (sequences * sum(map(task.token_count, lengths)))
        return self._measured[key]

    def _time(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    @contextmanager
    def _as_in_training(self, config: RunConfig) -> Iterator[None]:
        """Set torch up as a run does, with one thread where each run has a process of its own."""
        threads = torch.get_num_threads()
        torch.set_num_threads(threads if self.workers is None else 1)
        try:
            with (
                own_torch_state(self.device),
                precision(config.training.precision),
                memory_kept() if self.device.type == "cpu" else nullcontext(),
            ):
                yield
        finally:
            torch.set_num_threads(threads)
