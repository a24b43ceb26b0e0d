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
from latebloom.engine.checkpoint import (
    Tensors,
    complete_checkpoints,
    fitting,
    latest_checkpoint,
    load_newest,
    save_checkpoint,
)
from latebloom.engine.environment import choose_device
from latebloom.engine.files import make_folder, remove_folder, write_json
from latebloom.engine.folder import RunFolder, read_json
from latebloom.engine.journal import Journal
from latebloom.engine.manifest import damaged_files
from latebloom.engine.outcome import Observer, Outcome, Progress, TrainedRun
from latebloom.engine.pause import PAUSED, Pause, Stop, checkpoint_step, has_reached, step_reached, write_pause
from latebloom.engine.process_state import keep_freed_memory, preserve_torch_state, stop_requests
from latebloom.engine.saved_state import check_optimizer, check_state, load_part
from latebloom.engine.stacks import check_not_in_stack, stack_folders, stack_hashes
from latebloom.engine.times import STEPS, TIMES_FILE, Times, write_times
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, InterruptedRun, NonFiniteLossError, catch_write_errors
from latebloom.evaluation.evaluate import evaluate_each
from latebloom.evaluation.result import Evaluation
from latebloom.layers.precision import precision
from latebloom.tasks.contract import check_own_task

__all__ = ["Observer", "Outcome", "Progress", "TrainedRun", "run", "run_stacked", "run_until"]

SECONDS_BETWEEN_CHECKPOINTS = 20.0
"""A stack does hundreds of steps a second and its checkpoint is large, so it is saved by wall-clock time."""


def run(
    config: RunConfig, out: str | Path | None = None, *, device: str | None = None, observe: Observer | None = None
) -> TrainedRun:
    """Train a run, continue it from its checkpoint, or return it if the folder holds it finished."""
    folder = None if out is None else RunFolder(out)
    outcome = _run_alone(config, folder, choose_device(device), observe, None)
    if outcome is None:
        assert folder is not None
        return TrainedRun.load(folder.path)
    return outcome.trained[""]


def run_until(
    config: RunConfig, out: str | Path, stop: Stop, *, device: str | None = None, observe: Observer | None = None
) -> None:
    """Train or continue a run up to a pause; nothing is done if it has been there."""
    _run_alone(config, RunFolder(out), choose_device(device), observe, stop)


def _run_alone(
    config: RunConfig, folder: RunFolder | None, device: torch.device, observe: Observer | None, stop: Stop | None
) -> Outcome | None:
    """Train a run; return None if the folder shows that there is nothing left to do. A failure is an error."""
    _check_new(config, folder)
    with ExitStack() as opened:
        checkpoints, hashes = None, []
        if folder is not None:
            if folder.is_finished and not os.access(folder.path, os.W_OK) and folder.read_config().hash == config.hash:
                return None  # on a read-only disk
            check_not_in_stack(folder)
            opened.enter_context(folder.opened(config, str(device), extend=stop is None))
            if has_reached(folder, stop):
                return None
            checkpoints, hashes = folder.checkpoints, folder.hashes(config)
        outcome = _train({"": Journal(config, folder, observe)}, checkpoints, hashes, device, stop)
    for error in outcome.failed.values():
        raise error
    return outcome


def run_stacked(
    configs: dict[str, RunConfig],
    out: str | Path,
    device: torch.device,
    *,
    observe: Callable[[str, Progress], None] = lambda name, progress: None,
    stop: Stop | None = None,
) -> Outcome:
    """Train or continue runs with the same `stack_key` as one program, each in `out/NAME`.

    At a pause the stack is dissolved: each run has a checkpoint of its own, from which it goes on alone or with others.
    """
    for name, config in configs.items():
        _check_new(config, RunFolder(Path(out) / name))
    places = [Path(out) / name for name in stack_folders(configs)]
    journals = {}
    with ExitStack() as opened:
        for name, config in configs.items():
            folder = RunFolder(Path(out) / name)
            opened.enter_context(folder.opened(config, str(device)))
            journals[name] = Journal(config, folder, partial(observe, name))
        opened.enter_context(catch_write_errors(out))
        place = next((place for place in places if place.exists()), places[0])
        make_folder(place / "checkpoints")
        write_json(place / "members.json", {name: config.hash for name, config in configs.items()})
        outcome = _train(journals, place / "checkpoints", stack_hashes(configs), device, stop)
        if outcome.is_dissolved or not outcome.failed:
            remove_folder(place)  # every run has its own checkpoint or model now
    return outcome


def _check_new(config: RunConfig, folder: RunFolder | None) -> None:
    """Raise if the task is not what it declares, or if a run begins with a setting that has no effect."""
    check_own_task(config.task, config.training.length)
    if folder is None:
        config.check_effects()
    else:
        folder.check_effects(config)


def _train(
    journals: dict[str, Journal],
    checkpoints: Path | None,
    hashes: Sequence[str],
    device: torch.device,
    stop: Stop | None,
) -> Outcome:
    """Train one run, which has no name, or a stack; see `_Loop` for the hashes."""
    times = Times()
    configs = [journal.config for journal in journals.values()]
    with ExitStack() as opened:
        for journal in journals.values():
            opened.enter_context(closing(journal))
        opened.enter_context(preserve_torch_state(device))
        opened.enter_context(precision(configs[0].training.precision))
        if device.type == "cpu":
            opened.enter_context(keep_freed_memory())
        stop_requested = opened.enter_context(stop_requests())
        trainer = Trainer(configs, device, stacked=None if list(journals) == [""] else True)
        return _Loop(trainer, journals, checkpoints, hashes, stop_requested, stop, times).finish()


class _Loop:
    """Drives a trainer, and keeps wall-clock time, checkpoints and journals."""

    def __init__(
        self,
        trainer: Trainer,
        journals: dict[str, Journal],
        checkpoints: Path | None,
        hashes: Sequence[str],
        stop_requested: Callable[[], bool],
        stop: Stop | None,
        times: Times,
    ) -> None:
        """`hashes` are those that checkpoints may have; new ones have the first."""
        self.names, self.journals = list(journals), list(journals.values())
        self.is_stack = self.names != [""]
        self.trainer, self.training, self.stop_requested = trainer, trainer.shared.training, stop_requested
        self.checkpoints, self.hashes = checkpoints, hashes
        self.stop = stop if stop is not None and stop.step < self.training.steps else None
        self.goal = self.training.steps if self.stop is None else self.stop.step
        self.is_marked, self.times = False, times
        self.started = self.saved_at = time.monotonic()
        saved = complete_checkpoints(self.checkpoints) if self.checkpoints else []
        own = [journal.folder for journal in self.journals if self.is_stack and journal.folder is not None]
        reached = [step_reached(folder) for folder in own]
        if reached and min(reached) > 0 and (not saved or min(reached) >= checkpoint_step(saved[-1])):
            self._assemble(own, reached)
        elif saved:
            self._resume(*load_newest(saved, self.hashes))
        else:
            for journal in self.journals:
                journal.open(None)
        if self.checkpoints is not None and self.trainer.step > self.goal:
            raise CheckpointError(
                f"{self.checkpoints.parent} has gone on to step {self.trainer.step}, so it cannot be paused at step "
                f"{self.goal}; remove it to train it again"
            )

    def _resume(self, path: Path, tensors: Tensors, state: dict[str, Any]) -> None:
        with fitting(path):
            configs, backend = [journal.config for journal in self.journals], self.trainer.backend
            was_extended = not self.is_stack and len(self.hashes) > len(configs[0].hashes)
            check_state(state, configs, was_extended)
            check_optimizer(tensors, backend.parameters_of(0), backend.attention_names, state)
            self.trainer.load(tensors, state["trainer"])
            self.started -= state["seconds"]
            self.is_marked = state.get(PAUSED, False)
            # The checkpoint of a pause is saved before the test, and the time of the test counts too.
            tested = path.parent.parent / TIMES_FILE if self.is_marked else None
            self.times.add(read_json(tested) if tested and tested.exists() else state.get("times", {}))
            for journal, kept in zip(self.journals, state["journals"], strict=True):
                journal.open(kept)

    def _assemble(self, folders: Sequence[RunFolder], reached: Sequence[int]) -> None:
        """Begin a stack from the checkpoints of its runs, which were paused at one step."""
        if min(reached) != max(reached):
            raise CheckpointError(
                f"{folders[0].path} is at step {reached[0]} and others are at step {max(reached)}; runs of a stack "
                "must be at the same step"
            )
        backend = self.trainer.backend
        found = [
            load_part(folder, journal.config, backend.parameters_of(index), backend)
            for index, (journal, folder) in enumerate(zip(self.journals, folders, strict=True))
        ]
        with fitting(folders[0].checkpoints):
            self.trainer.load_parts([(tensors, state["trainer"]) for tensors, state in found])
        self.started -= max(state["seconds"] for _, state in found)
        for journal, (_, state) in zip(self.journals, found, strict=True):
            self.times.add(state.get("times", {}))
            journal.open(state["journals"][0])

    @property
    def seconds(self) -> float:
        """The wall-clock time of training, of earlier processes too."""
        return time.monotonic() - self.started

    def finish(self) -> Outcome:
        """Train to the last step, evaluate, and write the results."""
        trainer, training = self.trainer, self.training
        self._report(trainer.alive)
        self.times.lap("set-up")
        while trainer.step < self.goal:
            switched = trainer.advance()
            for index in switched:
                self.journals[index].forget_accuracies()
            is_last, is_goal = trainer.step == training.steps, trainer.step == self.goal
            if is_last or trainer.step % training.log_every == 0:
                self._log(range(len(self.journals)))
            elif switched:
                self._log(switched)
            for index in set(switched) & set(trainer.alive):
                self.journals[index].switched(trainer.step, trainer.runs[index].switch.reason)
            if is_last or trainer.step % training.check_every == 0:
                self._check()
            if training.probe_every and trainer.step % training.probe_every == 0:
                self._probe()
            stopping = self.stop_requested()
            if is_goal or stopping or self._checkpoint_is_due():
                self._save()
            if not trainer.alive:
                break
            if stopping and not is_goal:
                raise self._interrupted()
        self._lap_steps()
        seconds = self.seconds
        if not trainer.alive:
            return self._conclude([], seconds)
        if self.stop is not None:
            return self._pause(self._evaluate() if self.stop.test else None, seconds)
        return self._conclude(self._evaluate(), seconds)

    def _lap_steps(self) -> None:
        """Count the time since the last lap for steps; the device does them later than the host asks for them."""
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        self.times.lap(STEPS)
        self.times.move(self.trainer.captured.take_seconds(), STEPS, "capture")

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
        self._lap_steps()
        for index in trainer.alive:
            journal = self.journals[index]
            counts = [trainer.check(length)[index] for length in journal.config.watched_lengths]
            journal.checked(trainer.step, counts, trainer.runs[index].stage(trainer.step).withheld)
        self._report(trainer.alive)
        self.times.lap("checks")

    def _probe(self) -> None:
        self._lap_steps()
        found = self.trainer.interference()
        for index in self.trainer.alive:
            self.journals[index].probed(self.trainer.step, found[index])
        self.times.lap("checks")

    def _report(self, indices: Sequence[int]) -> None:
        for index in indices:
            self.journals[index].report(self.trainer.step, self.trainer.runs[index].stage(self.trainer.step).phase)

    def _save(self) -> None:
        """Save a checkpoint, unless every run has failed."""
        self._lap_steps()
        self.trainer.find_failures()
        if self.checkpoints is not None and self.trainer.alive:
            state = self._state(self.trainer.state(), self.journals, 1, self.seconds)
            self.is_marked = not self.is_stack and self.stop is not None and self.trainer.step == self.goal
            state |= {PAUSED: True} if self.is_marked else {}
            save_checkpoint(self.checkpoints, self.trainer.tensors(), state, self.hashes[0])
        self.saved_at = time.monotonic()  # after the save, or a slow disk would take all the time between two of them
        self.times.lap("checkpoints")

    def _state(
        self, trainer: dict[str, Any], journals: Sequence[Journal], shared_by: int, seconds: float
    ) -> dict[str, Any]:
        return {
            "step": self.trainer.step,
            "trainer": trainer,
            "seconds": seconds,
            "times": self.times.share(shared_by),
            "journals": [journal.state() for journal in journals],
        }

    def _pause(self, evaluations: list[Evaluation] | None, seconds: float) -> Outcome:
        """Leave each run with a checkpoint of its own at this step, and with the results of its test."""
        trainer, count = self.trainer, len(self.journals)
        if not self.is_stack and not self.is_marked:  # the checkpoint was saved before the pause was asked for
            self._save()
        failed: dict[str, NonFiniteLossError] = {}
        for index, (name, journal) in enumerate(zip(self.names, self.journals, strict=True)):
            run, folder = trainer.runs[index], journal.folder
            assert folder is not None, "a run without a folder cannot be paused"
            if self.is_stack and step_reached(folder) < trainer.step:
                # A failed run too: it fails again at once if the study is repeated, and is not trained anew.
                tensors, part = trainer.part(index)
                state = self._state(part, [journal], count, seconds) | {PAUSED: True}
                save_checkpoint(folder.checkpoints, tensors, state, folder.hashes(journal.config)[0])
            if run.failed_step is not None:
                failed[name] = journal.non_finite(run, None)
                continue
            if evaluations is not None:
                withheld = run.stage(trainer.step).withheld
                about = (trainer.step, run.switch.step, withheld, round(seconds, 2), count)
                write_pause(folder, Pause(*about, evaluations[index]))
            self.times.lap("checkpoints")
            write_times(folder.path, self.times.share(count))
            journal.report(trainer.step, PAUSED, 1.0)
        return Outcome({}, failed, is_dissolved=True)

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
            found = evaluate(each, shared.task, shared.test_lengths, seeds=trainer.seeds, device=trainer.device)
        self.times.lap("evaluation")
        return found

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
                is_good = last is not None and checkpoint_step(last) < run.failed_step
                failed[name] = journal.non_finite(run, last if is_good else None)
            else:
                model = self.trainer.model(index)
                if folder is not None:
                    write_times(folder.path, self.times.share(len(self.names)))
                trained[name] = journal.conclude(
                    run, model, evaluations[index], seconds=seconds, stacked=len(self.names)
                )
            if folder is not None and self.is_stack and name in trained:
                for own in complete_checkpoints(folder.checkpoints):  # of a pause, which nothing needs any more
                    remove_folder(own)
        return Outcome(trained, failed)
