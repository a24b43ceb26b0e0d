"""Runs from beginning to end: steps, measurements, checkpoints, resumption, and the final evaluation."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import Tensors, complete_checkpoints, latest_checkpoint, load_newest, save_checkpoint
from latebloom.engine.environment import choose_device
from latebloom.engine.files import make_folder, remove_folder, write_json
from latebloom.engine.folder import RunFolder
from latebloom.engine.journal import Journal
from latebloom.engine.manifest import damaged_files
from latebloom.engine.outcome import Observer, Outcome, Progress, TrainedRun
from latebloom.engine.process_state import keep_freed_memory, preserve_torch_state, stop_requests
from latebloom.engine.saved_state import check_optimizer, check_state
from latebloom.engine.stacks import check_not_in_stack, stack_folders, stack_hashes
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, InterruptedRun, NonFiniteLossError, catch_write_errors, first_line
from latebloom.evaluation.evaluate import evaluate_each
from latebloom.evaluation.result import Evaluation
from latebloom.layers.precision import precision
from latebloom.tasks.contract import check_own_task

__all__ = ["Observer", "Outcome", "Progress", "TrainedRun", "run", "run_stacked"]

SECONDS_BETWEEN_CHECKPOINTS = 20.0
"""A stack does hundreds of steps a second and its checkpoint is large, so it is saved by wall-clock time."""


def run(
    config: RunConfig, out: str | Path | None = None, *, device: str | None = None, observe: Observer | None = None
) -> TrainedRun:
    """Train a run, continue it from its checkpoint, or return it if the folder holds it finished."""
    chosen = choose_device(device)
    check_own_task(config.task, config.training.length)
    with ExitStack() as opened:
        folder, checkpoints, hashes = None, None, []
        if out is not None:
            folder = RunFolder(out)
            if folder.is_finished and not os.access(folder.path, os.W_OK) and folder.read_config().hash == config.hash:
                return TrainedRun.load(folder.path)  # on a read-only disk
            check_not_in_stack(folder)
            opened.enter_context(folder.opened(config, str(chosen), extend=True))
            if folder.is_finished:
                return TrainedRun.load(folder.path)
            checkpoints, hashes = folder.checkpoints, folder.hashes(config)
        outcome = _train({"": Journal(config, folder, observe)}, checkpoints, hashes, chosen)
    for error in outcome.failed.values():
        raise error
    return outcome.trained[""]


def run_stacked(
    configs: dict[str, RunConfig],
    out: str | Path,
    device: torch.device,
    *,
    observe: Callable[[str, Progress], None] = lambda name, progress: None,
) -> Outcome:
    """Train or continue runs with the same `stack_key` as one program, each in `out/NAME`."""
    for config in configs.values():
        check_own_task(config.task, config.training.length)
    places = [Path(out) / name for name in stack_folders(configs)]
    place = next((place for place in places if place.exists()), places[0])
    journals = {}
    with ExitStack() as opened:
        for name, config in configs.items():
            folder = RunFolder(Path(out) / name)
            opened.enter_context(folder.opened(config, str(device)))
            journals[name] = Journal(config, folder, partial(observe, name))
        opened.enter_context(catch_write_errors(out))
        make_folder(place / "checkpoints")
        write_json(place / "members.json", {name: config.hash for name, config in configs.items()})
        outcome = _train(journals, place / "checkpoints", stack_hashes(configs), device)
        if not outcome.failed:
            remove_folder(place)  # every run has its own model now
    return outcome


def _train(
    journals: dict[str, Journal], checkpoints: Path | None, hashes: Sequence[str], device: torch.device
) -> Outcome:
    """Train one run, which has no name, or a stack; see `_Loop` for the hashes."""
    configs = [journal.config for journal in journals.values()]
    with ExitStack() as opened:
        for journal in journals.values():
            opened.enter_context(closing(journal))
        opened.enter_context(preserve_torch_state(device))
        opened.enter_context(precision(configs[0].training.precision))
        if device.type == "cpu":
            opened.enter_context(keep_freed_memory())
        stop_requested = opened.enter_context(stop_requests())
        trainer = Trainer(configs, device, stacked=list(journals) != [""])
        return _Loop(trainer, journals, checkpoints, hashes, stop_requested).finish()


class _Loop:
    """Drives a trainer, and keeps wall-clock time, checkpoints and journals."""

    def __init__(
        self,
        trainer: Trainer,
        journals: dict[str, Journal],
        checkpoints: Path | None,
        hashes: Sequence[str],
        stop_requested: Callable[[], bool],
    ) -> None:
        """`hashes` are those that checkpoints may have; new ones have the first."""
        self.names, self.journals = list(journals), list(journals.values())
        self.is_stack = self.names != [""]
        self.trainer, self.training, self.stop_requested = trainer, trainer.shared.training, stop_requested
        self.checkpoints, self.hashes = checkpoints, hashes
        self.started = self.saved_at = time.monotonic()
        saved = complete_checkpoints(self.checkpoints) if self.checkpoints else []
        if saved:
            self._resume(*load_newest(saved, self.hashes))
        else:
            for journal in self.journals:
                journal.open(None)

    def _resume(self, path: Path, tensors: Tensors, state: dict[str, Any]) -> None:
        try:
            configs = [journal.config for journal in self.journals]
            was_extended = not self.is_stack and len(self.hashes) > len(configs[0].hashes)
            check_state(state, configs, was_extended)
            check_optimizer(tensors, self.trainer.backend.attention_names, state["step"])
            self.trainer.load(tensors, state["trainer"])
            self.started -= state["seconds"]
            for journal, kept in zip(self.journals, state["journals"], strict=True):
                journal.open(kept)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise CheckpointError(
                f"checkpoint {path} does not fit this run ({type(error).__name__}: {first_line(error)}); "
                "choose another folder with --out"
            ) from error

    @property
    def seconds(self) -> float:
        """The wall-clock time of training, of earlier processes too."""
        return time.monotonic() - self.started

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
        means = trainer.read_means(indices)
        alive = [index for index in indices if trainer.runs[index].failed_step is None]
        for index in alive:
            self.journals[index].log(trainer.step, trainer.runs[index], means[index])
        self._report(alive)

    def _check(self) -> None:
        trainer = self.trainer
        for index in trainer.alive:
            journal = self.journals[index]
            counts = [trainer.check(length)[index] for length in journal.config.watched_lengths]
            journal.checked(trainer.step, counts, trainer.runs[index].stage(trainer.step).withheld)
        self._report(trainer.alive)

    def _report(self, indices: Sequence[int]) -> None:
        for index in indices:
            self.journals[index].report(self.trainer.step, self.trainer.runs[index].stage(self.trainer.step).phase)

    def _save(self) -> None:
        """Save a checkpoint, unless every run has failed."""
        self.trainer.find_failures()
        if self.checkpoints is not None and self.trainer.alive:
            state = {
                "step": self.trainer.step,
                "trainer": self.trainer.state(),
                "seconds": self.seconds,
                "journals": [journal.state() for journal in self.journals],
            }
            save_checkpoint(self.checkpoints, self.trainer.tensors(), state, self.hashes[0])
        self.saved_at = time.monotonic()  # after the save, or a slow disk would take all the time between two of them

    def _interrupted(self) -> InterruptedRun:
        step, steps = self.trainer.step, self.training.steps
        stopped = f"stopped{f' {len(self.names)} runs' * self.is_stack} at step {step} of {steps}"
        if self.checkpoints is None:
            return InterruptedRun(f"{stopped}; nothing was saved, because no folder was given")
        folder = self.checkpoints.parent
        if self.is_stack:
            return InterruptedRun(f"{stopped}; saved in {folder.parent}")
        return InterruptedRun(f"{stopped} and saved; continue with: latebloom train --out {folder}")

    def _evaluate(self) -> list[Evaluation]:
        trainer, shared = self.trainer, self.trainer.shared

        def report(share: float) -> None:
            for index in trainer.alive:
                self.journals[index].report(trainer.step, "testing", share)
            if self.stop_requested():
                raise self._interrupted()

        length, sequences = shared.training.length, shared.evaluation.sequences
        evaluate = partial(evaluate_each, training_length=length, sequences=sequences, progress=report)
        with trainer.current_gates() as each:
            return evaluate(each, shared.task, shared.test_lengths, seeds=trainer.seeds, device=trainer.device)

    def _conclude(self, evaluations: list[Evaluation], seconds: float) -> Outcome:
        trained: dict[str, TrainedRun] = {}
        failed: dict[str, NonFiniteLossError] = {}
        last = None if self.checkpoints is None or self.is_stack else latest_checkpoint(self.checkpoints)
        for index, (name, journal) in enumerate(zip(self.names, self.journals, strict=True)):
            run = self.trainer.runs[index]
            folder = journal.folder
            if folder is not None and folder.is_finished and not damaged_files(folder.path):  # killed while writing
                trained[name] = TrainedRun.load(folder.path)
            elif run.failed_step is not None:
                failed[name] = journal.non_finite(run, last)
            else:
                model = self.trainer.backend.model(index)
                trained[name] = journal.conclude(
                    run, model, evaluations[index], seconds=seconds, stacked=len(self.names)
                )
        return Outcome(trained, failed)
