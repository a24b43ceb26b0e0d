"""Many runs from beginning to end as one program: what `loop` is for one.

Each run has a folder of its own with what it would have alone, but for the checkpoints: those are of the whole stack,
in `stack-HASH/checkpoints` beside the runs' folders.
"""

import hashlib
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import (
    keep_newest,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    write_json,
)
from latebloom.engine.folder import RunFolder
from latebloom.engine.journal import Journal
from latebloom.engine.outcome import Progress, TrainedRun
from latebloom.engine.stacked_trainer import StackedTrainer
from latebloom.engine.surroundings import own_torch_state, stop_requests
from latebloom.errors import CheckpointError, InterruptedRun, NonFiniteLossError, full_disk_in_words
from latebloom.evaluation.evaluate import evaluate_stacked
from latebloom.layers.precision import precision

SECONDS_BETWEEN_CHECKPOINTS = 20.0
"""A stack takes hundreds of steps a second and a checkpoint of it is large, so it is saved by the clock."""

NamedObserver = Callable[[str, Progress], None]


@dataclass(frozen=True)
class Outcome:
    """What became of the runs of a stack."""

    trained: dict[str, TrainedRun]
    failed: dict[str, NonFiniteLossError]


def run_stacked(
    configs: dict[str, RunConfig],
    out: str | Path | None,
    device: torch.device,
    *,
    observe: NamedObserver = lambda name, seen: None,
    capture: bool = True,
) -> Outcome:
    """Train runs that may share a stack (`stack_key`), or go on with them, in `out/NAME` each."""
    folders = {name: None if out is None else RunFolder(Path(out) / name) for name in configs}
    with ExitStack() as opened:
        for name, folder in folders.items():
            if folder is not None:
                opened.enter_context(folder.opened(configs[name], str(device)))
        opened.enter_context(own_torch_state(device))
        opened.enter_context(precision(next(iter(configs.values())).training.precision))
        stop_requested = opened.enter_context(stop_requests())
        journals = {
            name: Journal(config, folders[name], lambda seen, name=name: observe(name, seen))
            for name, config in configs.items()
        }
        places = [] if out is None else [Path(out) / name for name in stack_folders(configs)]
        place = next((place for place in places if place.exists()), places[0] if places else None)
        try:
            with full_disk_in_words(out or ""):  # whichever of its folders is being written
                return _StackedRun(journals, place, device, stop_requested, capture).finish()
        finally:
            for journal in journals.values():
                journal.close()


def stack_folders(configs: dict[str, RunConfig]) -> list[str]:
    """Return the name of the folder with the checkpoints of a stack of these runs, and its names in older versions."""
    return [f"stack-{name}" for name in _stack_hashes(configs)]


def refuse_member(folder: RunFolder) -> None:
    """Raise if a run was interrupted in a stack, whose checkpoints are of all its runs: alone it would begin anew."""
    if folder.is_finished or latest_checkpoint(folder.checkpoints) is not None:
        return
    path = folder.path.absolute()
    for parent in path.parents:
        for file in parent.glob("stack-*/members.json"):
            try:
                members = RunFolder(file.parent).read_json(file)
            except CheckpointError:
                continue  # not ours, or not whole: nothing that could go on
            if path.relative_to(parent).as_posix() in members and latest_checkpoint(file.parent / "checkpoints"):
                words = folder.read_json(path / "environment.json", "command")["command"]
                raise CheckpointError(
                    f"{folder.path} was trained in a stack of {len(members)} runs and goes on with them: "
                    f"latebloom {shlex.join(words[1:])}; to train it alone from the beginning, remove {file.parent}"
                )


def _stack_hashes(configs: dict[str, RunConfig]) -> list[str]:
    """Return the hash of a stack, and those that older versions gave to it."""
    versions = zip(*(config.hashes for config in configs.values()), strict=False)
    members = ["\n".join(map(" ".join, zip(configs, hashes, strict=True))) for hashes in versions]
    return [hashlib.sha256(text.encode()).hexdigest()[:12] for text in members]


class _StackedRun:
    """The loop's state outside the trainer: clock, checkpoints, journals."""

    def __init__(
        self,
        journals: dict[str, Journal],
        place: Path | None,
        device: torch.device,
        stop_requested: Callable[[], bool],
        capture: bool,
    ) -> None:
        self.names, self.journals = list(journals), list(journals.values())
        self.configs = {name: journal.config for name, journal in journals.items()}
        self.place, self.stop_requested = place, stop_requested
        self.trainer = StackedTrainer(list(self.configs.values()), device, capture=capture)
        self.training = self.trainer.shared.training
        self.seconds_before, self.started = 0.0, time.monotonic()
        self.saved_at = time.monotonic()
        self.last_checkpoint: Path | None = None
        self._resume()

    def _resume(self) -> None:
        states: list[dict[str, Any] | None] = [None] * len(self.journals)
        if self.place is not None:
            (self.place / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_json(self.place / "members.json", {name: config.hash for name, config in self.configs.items()})
            self.last_checkpoint = latest_checkpoint(self.place / "checkpoints")
        if self.last_checkpoint is not None:
            tensors, state = load_checkpoint(self.last_checkpoint, _stack_hashes(self.configs))
            try:
                self.trainer.load(tensors, state["trainer"])
                self.seconds_before, states = state["seconds"], state["journals"]
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"checkpoint {self.last_checkpoint} is not one of this stack's ({type(error).__name__}); "
                    "remove it to go on from the one before"
                ) from error
        for journal, state in zip(self.journals, states, strict=True):
            journal.open(state)

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def finish(self) -> Outcome:
        trainer, training = self.trainer, self.training
        self._tell_all()
        while trainer.step < training.steps:
            switched = trainer.advance()
            is_last = trainer.step == training.steps
            if is_last or trainer.step % training.log_every == 0:
                self._log(list(range(len(self.journals))), tell=True)
            elif switched:
                self._log(switched, tell=False)
            for index in set(switched) & set(self._alive):
                self.journals[index].switched(trainer.step, trainer.members[index].switch_reason)
            if is_last or trainer.step % training.check_every == 0:
                self._check()
            stopping = self.stop_requested()
            if is_last or stopping or time.monotonic() - self.saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                self._save()
            if stopping and not is_last:
                raise self._interrupted()
        return self._conclude(self.seconds)

    @property
    def _alive(self) -> list[int]:
        return [index for index, member in enumerate(self.trainer.members) if member.failed_step is None]

    def _log(self, indices: list[int], tell: bool) -> None:
        trainer = self.trainer
        if tell:
            trainer.find_failures()
        for index, means in trainer.read_means(indices).items():
            member = trainer.members[index]
            if member.failed_step is None:
                self.journals[index].log(trainer.step, member.phase_done, member.rate_done, means)
        if tell:
            self._tell_all()

    def _check(self) -> None:
        counts = [self.trainer.check(tested) for tested in self.trainer.watched_lengths]
        for index in self._alive:
            member, watched = self.trainer.members[index], self.journals[index].config.watched_lengths
            own = [count[index] for count in counts if count[index].length in watched]
            self.journals[index].checked(self.trainer.step, own, member.withheld)
        self._tell_all()

    def _tell_all(self) -> None:
        for index in self._alive:
            self.journals[index].tell(self.trainer.step, self.trainer.members[index].phase_name)

    def _save(self) -> None:
        self.trainer.find_failures()
        self.saved_at = time.monotonic()
        if self.place is None:
            return
        state = {
            "step": self.trainer.step,
            "trainer": self.trainer.state(),
            "seconds": self.seconds,
            "journals": [journal.state() for journal in self.journals],
        }
        checkpoints = self.place / "checkpoints"
        self.last_checkpoint = save_checkpoint(
            checkpoints, self.trainer.tensors(), state, _stack_hashes(self.configs)[0]
        )
        keep_newest(checkpoints)

    def _interrupted(self) -> InterruptedRun:
        step, steps = self.trainer.step, self.training.steps
        kept = f"saved in {self.place.parent}" if self.place else "nothing was saved, because no folder was given"
        return InterruptedRun(f"stopped {len(self.names)} runs at step {step} of {steps}; {kept}")

    def _conclude(self, seconds: float) -> Outcome:
        trainer, steps = self.trainer, self.training.steps

        def tell(share: float) -> None:
            for index in self._alive:
                self.journals[index].tell(steps, "testing", share)
            if self.stop_requested():
                raise self._interrupted()

        shared = trainer.shared
        evaluations = evaluate_stacked(
            trainer.stack.each,
            shared.task,
            shared.test_lengths,
            training_length=shared.training.length,
            sequences=shared.evaluation.sequences,
            seeds=trainer.seeds,
            device=trainer.device,
            progress=tell,
        )
        trained: dict[str, TrainedRun] = {}
        failed: dict[str, NonFiniteLossError] = {}
        for index, (name, journal) in enumerate(zip(self.names, self.journals, strict=True)):
            member = trainer.members[index]
            if journal.folder is not None and journal.folder.is_finished:  # killed while these were written
                trained[name] = TrainedRun.load(journal.folder.path)
                continue
            if member.failed_step is not None:
                failed[name] = journal.non_finite(member.failed_step, member.switch_step, None)
                continue
            trained[name] = journal.conclude(
                trainer.stack.model(index),
                evaluations[index],
                switch_step=member.switch_step,
                switch_reason=member.switch_reason,
                seconds=seconds,
                stacked=len(self.names),
            )
        if self.place is not None and not failed:
            shutil.rmtree(self.place, ignore_errors=True)  # every run has its own model now
        return Outcome(trained, failed)
