"""Runs from beginning to end: steps, measurements, checkpoints, resumption, and the final evaluation."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import CheckpointStore, write_json
from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.engine.journal import Journal
from latebloom.engine.older_checkpoints import upgrade
from latebloom.engine.outcome import Observer, Progress, TrainedRun
from latebloom.engine.process_state import keep_freed_memory, preserve_torch_state, stop_requests
from latebloom.engine.stacks import check_not_in_stack, stack_folders, stack_hashes
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, InterruptedRun, NonFiniteLossError, catch_full_disk
from latebloom.evaluation.evaluate import evaluate_each
from latebloom.layers.precision import precision
from latebloom.tasks.contract import check_own_task

__all__ = ["NamedObserver", "Observer", "Outcome", "Progress", "TrainedRun", "run", "run_stacked"]

SECONDS_BETWEEN_CHECKPOINTS = 20.0
"""A stack does hundreds of steps a second and its checkpoint is large, so it is saved by wall-clock time."""

NamedObserver = Callable[[str, Progress], None]


@dataclass(frozen=True)
class Outcome:
    """The trained runs, and the error of each run that failed."""

    trained: dict[str, TrainedRun]
    failed: dict[str, NonFiniteLossError]


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    device: str | None = None,
    observe: Observer | None = None,
) -> TrainedRun:
    """Train a run, continue it from its checkpoint, or return it if the folder holds it finished."""
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        check_not_in_stack(folder)
    outcome = _train({"": Journal(config, folder, observe)}, None, choose_device(device))
    for error in outcome.failed.values():
        raise error
    return outcome.trained[""]


def run_stacked(
    configs: dict[str, RunConfig],
    out: str | Path | None,
    device: torch.device,
    *,
    observe: NamedObserver = lambda name, progress: None,
    capture: bool = True,
) -> Outcome:
    """Train or continue runs with the same `stack_key` as one program, each in `out/NAME`."""
    journals = {
        name: Journal(
            config,
            None if out is None else RunFolder(Path(out) / name),
            lambda progress, name=name: observe(name, progress),
        )
        for name, config in configs.items()
    }
    places = [] if out is None else [Path(out) / name for name in stack_folders(configs)]
    place = next((place for place in places if place.exists()), places[0] if places else None)
    return _train(journals, place, device, stacked=True, capture=capture)


def _train(
    journals: dict[str, Journal],
    stack: Path | None,
    device: torch.device,
    *,
    stacked: bool = False,
    capture: bool = True,
) -> Outcome:
    configs = {name: journal.config for name, journal in journals.items()}
    shared = next(iter(configs.values()))
    check_own_task(shared.task, shared.training.length)
    with ExitStack() as opened:
        for journal in journals.values():
            if journal.folder is not None:
                opened.enter_context(journal.folder.opened(journal.config, str(device), extend=not stacked))
        store = None if stack is None else CheckpointStore(stack / "checkpoints", stack_hashes(configs))
        if not stacked and (folder := journals[""].folder) is not None:
            if folder.is_finished:
                return Outcome({"": TrainedRun.load(folder.path)}, {})
            store = CheckpointStore(folder.checkpoints, [*configs[""].hashes, *folder.earlier_hashes()])
        opened.enter_context(preserve_torch_state(device))
        opened.enter_context(precision(shared.training.precision))
        if device.type == "cpu":
            opened.enter_context(keep_freed_memory())
        stop_requested = opened.enter_context(stop_requests())
        if stack is not None:
            opened.enter_context(catch_full_disk(stack.parent))
            (stack / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_json(stack / "members.json", {name: config.hash for name, config in configs.items()})
        try:
            trainer = Trainer(list(configs.values()), device, stacked=stacked, capture=capture)
            outcome = _Loop(journals, trainer, store, stop_requested).finish()
        finally:
            for journal in journals.values():
                journal.close()
        if stack is not None and not outcome.failed:
            shutil.rmtree(stack, ignore_errors=True)  # every run has its own model now
        return outcome


class _Loop:
    """Drives a trainer, and keeps wall-clock time, checkpoints and journals."""

    def __init__(
        self,
        journals: dict[str, Journal],
        trainer: Trainer,
        store: CheckpointStore | None,
        stop_requested: Callable[[], bool],
    ) -> None:
        self.names, self.journals = list(journals), list(journals.values())
        self.trainer, self.store, self.stop_requested = trainer, store, stop_requested
        self.training = trainer.shared.training
        self.is_stack = self.names != [""]
        self.seconds_before, self.started = 0.0, time.monotonic()
        self.saved_at = time.monotonic()
        self._resume()

    def _resume(self) -> None:
        states: Sequence[Any] = [None] * len(self.journals)
        found = None if self.store is None else self.store.load_latest()
        if found is not None:
            path, tensors, state = found
            try:
                tensors, state = upgrade(tensors, state)
                self.trainer.load(tensors, state["trainer"])
                self.seconds_before, states = state["seconds"], state["journals"]
            except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"checkpoint {path} does not fit this run ({type(error).__name__}); "
                    "remove it to continue from the one before"
                ) from error
        for journal, state in zip(self.journals, states, strict=True):
            journal.open(state)

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def finish(self) -> Outcome:
        """Train to the last step, evaluate, and write the results."""
        trainer, training = self.trainer, self.training
        self._report(trainer.alive)
        while trainer.step < training.steps:
            switched = trainer.advance()
            is_last = trainer.step == training.steps
            if is_last or trainer.step % training.log_every == 0:
                self._log(range(len(self.journals)))
            elif switched:
                self._log(switched)
            for index in set(switched) & set(trainer.alive):
                self.journals[index].switched(trainer.step, trainer.runs[index].switch.reason)
            if is_last or trainer.step % training.check_every == 0:
                self._check()
            stopping = self.stop_requested()
            if is_last or stopping or self._checkpoint_is_due():
                self._save()
            if not trainer.alive:
                return self._conclude([], self.seconds)
            if stopping and not is_last:
                raise self._interrupted()
        seconds = self.seconds
        return self._conclude(self._evaluate(), seconds)

    def _checkpoint_is_due(self) -> bool:
        if self.is_stack:
            return time.monotonic() - self.saved_at > SECONDS_BETWEEN_CHECKPOINTS
        return self.trainer.step % self.training.checkpoint_every == 0

    def _log(self, indices: Sequence[int]) -> None:
        trainer = self.trainer
        trainer.find_failures()
        alive = [index for index in indices if index in set(trainer.alive)]
        for index, means in trainer.read_means(indices).items():
            if index in alive:
                run = trainer.runs[index]
                self.journals[index].log(trainer.step, run.phase_done, run.rate_done, means)
        self._report(alive)

    def _check(self) -> None:
        trainer = self.trainer
        lengths = sorted({length for journal in self.journals for length in journal.config.watched_lengths})
        if not trainer.alive:
            return
        counts = {length: trainer.check(length) for length in lengths}
        for index in trainer.alive:
            journal = self.journals[index]
            own = [counts[length][index] for length in journal.config.watched_lengths]
            journal.checked(trainer.step, own, trainer.runs[index].stage(trainer.step).withheld)
        self._report(trainer.alive)

    def _report(self, indices: Sequence[int]) -> None:
        for index in indices:
            self.journals[index].report(self.trainer.step, self.trainer.runs[index].stage(self.trainer.step).phase)

    def _save(self) -> None:
        """Save a checkpoint, unless every run has failed."""
        self.trainer.find_failures()
        self.saved_at = time.monotonic()
        if self.store is None or not self.trainer.alive:
            return
        state = {
            "step": self.trainer.step,
            "trainer": self.trainer.state(),
            "seconds": self.seconds,
            "journals": [journal.state() for journal in self.journals],
        }
        self.store.save(self.trainer.tensors(), state)

    def _interrupted(self) -> InterruptedRun:
        step, steps = self.trainer.step, self.training.steps
        stopped = f"stopped{f' {len(self.names)} runs' * self.is_stack} at step {step} of {steps}"
        if self.store is None:
            return InterruptedRun(f"{stopped}; nothing was saved, because no folder was given")
        folder = self.store.folder.parent
        if self.is_stack:
            return InterruptedRun(f"{stopped}; saved in {folder.parent}")
        return InterruptedRun(f"{stopped} and saved; continue with: latebloom train --out {folder}")

    def _evaluate(self) -> list[Any]:
        trainer, shared = self.trainer, self.trainer.shared

        def report(share: float) -> None:
            for index in trainer.alive:
                self.journals[index].report(trainer.step, "testing", share)
            if self.stop_requested():
                raise self._interrupted()

        with trainer.current_gates() as each:
            return evaluate_each(
                each,
                shared.task,
                shared.test_lengths,
                training_length=shared.training.length,
                sequences=shared.evaluation.sequences,
                seeds=trainer.seeds,
                device=trainer.device,
                progress=report,
            )

    def _conclude(self, evaluations: list[Any], seconds: float) -> Outcome:
        trained: dict[str, TrainedRun] = {}
        failed: dict[str, NonFiniteLossError] = {}
        last = None if self.store is None or self.is_stack else self.store.latest
        for index, (name, journal) in enumerate(zip(self.names, self.journals, strict=True)):
            run = self.trainer.runs[index]
            if journal.folder is not None and journal.folder.is_finished:  # killed while writing
                trained[name] = TrainedRun.load(journal.folder.path)
            elif run.failed_step is not None:
                failed[name] = journal.non_finite(run.failed_step, run.switch.step, last)
            else:
                trained[name] = journal.conclude(
                    self.trainer.backend.model(index),
                    evaluations[index],
                    switch_step=run.switch.step,
                    switch_reason=run.switch.reason,
                    seconds=seconds,
                    stacked=len(self.names),
                )
        return Outcome(trained, failed)
