"""A run from beginning to end: steps, measurements, checkpoints, resumption, and the evaluation at the end."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import keep_newest, latest_checkpoint, load_checkpoint, save_checkpoint
from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.engine.journal import Journal
from latebloom.engine.outcome import Observer, Progress, TrainedRun
from latebloom.engine.stacked_run import refuse_member
from latebloom.engine.surroundings import memory_kept, own_torch_state, stop_requests
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, InterruptedRun
from latebloom.evaluation.evaluate import evaluate
from latebloom.evaluation.result import Evaluation
from latebloom.layers.precision import precision

__all__ = ["Observer", "Progress", "TrainedRun", "run"]


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    device: str | None = None,
    observe: Observer | None = None,
) -> TrainedRun:
    """Train a run, or go on with it, or give back the finished one that the folder holds."""
    chosen = choose_device(device)
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        refuse_member(folder)
    with folder.opened(config, str(chosen)) if folder else nullcontext():
        if folder is not None and folder.is_finished:
            return TrainedRun.load(folder.path)
        with (
            own_torch_state(chosen),
            precision(config.training.precision),
            memory_kept() if chosen.type == "cpu" else nullcontext(),
            stop_requests() as stop_requested,
        ):
            return _Run(Journal(config, folder, observe), chosen, stop_requested).finish()


class _Run:
    """The loop's state outside the trainer: clock, checkpoints, journal."""

    def __init__(self, journal: Journal, device: torch.device, stop_requested: Callable[[], bool]) -> None:
        self.config, self.folder, self.journal = journal.config, journal.folder, journal
        self.stop_requested = stop_requested
        self.trainer = Trainer(self.config, device)
        self.seconds_before, self.started = 0.0, time.monotonic()
        self.last_checkpoint: Path | None = None
        self._resume()

    def _resume(self) -> None:
        journal_state = None
        if self.folder is not None:
            self.last_checkpoint = latest_checkpoint(self.folder.checkpoints)
        if self.last_checkpoint is not None:
            tensors, state = load_checkpoint(self.last_checkpoint, self.config.hashes)
            try:
                self.trainer.load(tensors, state["trainer"])
                self.seconds_before, journal_state = state["seconds"], state["journal"]
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"checkpoint {self.last_checkpoint} is not one of this run's ({type(error).__name__}); "
                    "remove it to go on from the one before"
                ) from error
        self.journal.open(journal_state)

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def finish(self) -> TrainedRun:
        trainer, training = self.trainer, self.config.training
        try:
            self._tell(trainer.phase_name)
            while trainer.step < training.steps:
                switched = trainer.advance()
                is_last = trainer.step == training.steps
                if is_last or switched or trainer.step % training.log_every == 0:
                    self._log()
                if switched and trainer.delay is not None:
                    self.journal.switched(trainer.step, trainer.delay.switch_reason)
                if is_last or trainer.step % training.check_every == 0:
                    self._check()
                stopping = self.stop_requested()
                if is_last or stopping or trainer.step % training.checkpoint_every == 0:
                    self._save()
                if stopping and not is_last:
                    raise self._interrupted()
            seconds = self.seconds
            if trainer.delay is not None:
                trainer.delay.remove()  # what is tested is what is saved
            return self.journal.conclude(
                trainer.model,
                self._test(),
                switch_step=None if trainer.delay is None else trainer.delay.switch_step,
                switch_reason=None if trainer.delay is None else trainer.delay.switch_reason,
                seconds=seconds,
                stacked=1,
            )
        finally:
            self.journal.close()

    def _log(self) -> None:
        self._refuse_bad_loss()
        trainer = self.trainer
        self.journal.log(trainer.step, trainer.phase_done, trainer.rate_done, trainer.read_means())
        self._tell(trainer.phase_name)

    def _check(self) -> None:
        counts = [self.trainer.check(tested) for tested in self.config.watched_lengths]
        self.journal.checked(self.trainer.step, counts, self.trainer.withheld)
        self._tell(self.trainer.phase_name)

    def _refuse_bad_loss(self) -> None:
        bad = self.trainer.first_bad_step()
        if bad is not None:
            switch = None if self.trainer.delay is None else self.trainer.delay.switch_step
            raise self.journal.non_finite(bad, switch, self.last_checkpoint)

    def _save(self) -> None:
        self._refuse_bad_loss()
        if self.folder is None:
            return
        state = {
            "step": self.trainer.step,
            "trainer": self.trainer.state(),
            "seconds": self.seconds,
            "journal": self.journal.state(),
        }
        self.last_checkpoint = save_checkpoint(self.folder.checkpoints, self.trainer.tensors(), state, self.config.hash)
        keep_newest(self.folder.checkpoints)

    def _interrupted(self) -> InterruptedRun:
        step, steps = self.trainer.step, self.config.training.steps
        if self.folder is None:
            return InterruptedRun(f"stopped at step {step} of {steps}; nothing was saved, because no folder was given")
        return InterruptedRun(
            f"stopped at step {step} of {steps} and saved; go on with: latebloom train --out {self.folder.path}"
        )

    def _test(self) -> Evaluation:
        def tell(share: float) -> None:
            self._tell("testing", share)
            if self.stop_requested():
                raise self._interrupted()

        return evaluate(
            self.trainer.model,
            self.config.task,
            self.config.test_lengths,
            training_length=self.config.training.length,
            sequences=self.config.evaluation.sequences,
            seed=self.config.seed,
            device=self.trainer.device,
            progress=tell,
        )

    def _tell(self, phase: str, tested: float = 0.0) -> None:
        self.journal.tell(self.trainer.step, phase, tested)
