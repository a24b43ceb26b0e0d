"""A run from beginning to end: steps, measurements, checkpoints, resumption, and the evaluation at the end."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latebloom.config import RunConfig
from latebloom.errors import CheckpointError, InterruptedRun, NonFiniteLossError
from latebloom.evaluation.evaluate import evaluate
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.models.sequence_model import SequenceModel
from latebloom.training.checkpoint import (
    keep_newest,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    write_json,
)
from latebloom.training.environment import choose_device
from latebloom.training.folder import MetricsFile, RunFolder
from latebloom.training.trainer import Trainer


@dataclass(frozen=True)
class Progress:
    """What an observer is told while a run goes on."""

    step: int
    steps: int
    phase: str
    """delayed, full, testing or done."""
    loss: float | None = None
    accuracy: float | None = None
    """Held-out accuracy at the training length, of all answers that are asked in this phase."""
    accuracy_beyond: float | None = None
    """The same at three times the training length."""
    tested: float = 0.0
    """The share of the final evaluation that is done."""


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run."""

    config: RunConfig
    model: SequenceModel
    evaluation: Evaluation
    result: dict[str, Any]
    """steps, switch_step, switch_reason, seconds, parameters, seed, reach, cliff and the configuration's hash."""
    folder: Path | None = None

    @property
    def switch_step(self) -> int | None:
        return self.result["switch_step"]

    def evaluate(
        self,
        lengths: list[int] | None = None,
        *,
        sequences: int | None = None,
        device: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Evaluation:
        """Accuracy at other lengths, or on another number of sequences."""
        return evaluate(
            self.model,
            self.config.task,
            self.config.test_lengths if lengths is None else lengths,
            training_length=self.config.training.length,
            sequences=self.config.evaluation.sequences if sequences is None else sequences,
            seed=self.config.seed,
            device=choose_device(device),
            progress=progress,
        )

    @classmethod
    def load(cls, path: str | Path) -> "TrainedRun":
        """The finished run in a folder."""
        folder = RunFolder(path)
        config = folder.read_config()
        if not folder.is_finished:
            raise CheckpointError(f"{path} is not finished; go on with `latebloom train --out {path}`")
        model = SequenceModel.from_pretrained(folder.model)
        evaluation = Evaluation.from_json(folder.read_json(folder.evaluation_file))
        return cls(config, model, evaluation, folder.read_json(folder.result_file), folder.path)


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
    with folder.opened(config, str(chosen)) if folder else nullcontext():
        if folder is not None and folder.is_finished:
            return TrainedRun.load(folder.path)
        with _own_randomness(chosen), _stop_requests() as stop_requested:
            return _Run(config, folder, chosen, observe or (lambda progress: None), stop_requested).finish()


class _Run:
    """The loop's state outside the trainer: clock, files, observer."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder | None,
        device: torch.device,
        observe: Observer,
        stop_requested: Callable[[], bool],
    ) -> None:
        self.config, self.folder, self.observe, self.stop_requested = config, folder, observe, stop_requested
        self.trainer = Trainer(config, device)
        self.seconds_before, self.started = 0.0, time.monotonic()
        self.last_seen: dict[str, float | None] = {"loss": None, "accuracy": None, "accuracy_beyond": None}
        self.metrics: MetricsFile | None = None
        self.last_checkpoint: Path | None = None
        if folder is not None:
            self._resume(folder)

    def _resume(self, folder: RunFolder) -> None:
        self.last_checkpoint = latest_checkpoint(folder.checkpoints)
        written = 0
        if self.last_checkpoint is not None:
            tensors, state = load_checkpoint(self.last_checkpoint, self.config.hash)
            try:
                self.trainer.load(tensors, state["trainer"])
                self.seconds_before, written = state["seconds"], state["metrics_bytes"]
                self.last_seen = state["last_seen"]
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"checkpoint {self.last_checkpoint} is not one of this run's ({type(error).__name__}); "
                    "remove it to go on from the one before"
                ) from error
        self.metrics = MetricsFile(folder.metrics_file, written)

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
                    self._write({"step": trainer.step, "switch": trainer.delay.switch_reason})
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
            return self._conclude(self._test(), seconds)
        finally:
            if self.metrics is not None:
                self.metrics.close()

    def _log(self) -> None:
        self._refuse_bad_loss()
        means = self.trainer.read_means()
        self.last_seen["loss"] = means["loss"]
        rate = float(self.trainer.optimizer.param_groups[-1]["lr"])
        phase = self.trainer.phase_done
        self._write({"step": self.trainer.step, "phase": phase, "learning_rate": rate} | means)
        self._tell(self.trainer.phase_name)

    def _check(self) -> None:
        length = self.config.training.length
        line: dict[str, Any] = {"step": self.trainer.step, "check": {}}
        for tested in self.config.watched_lengths:
            count = self.trainer.check(tested)
            named = {name: count.accuracy_of(name) for name in count.answers}
            line["check"][str(tested)] = {"accuracy": count.accuracy} | named
            asked = [right for name, right in named.items() if name not in self._withheld]
            seen = min(asked) if self._withheld else count.accuracy
            if tested in (length, CLAIM * length):
                self.last_seen["accuracy" if tested == length else "accuracy_beyond"] = seen
        self._write(line)
        self._tell(self.trainer.phase_name)

    @property
    def _withheld(self) -> tuple[str, ...]:
        delay = self.config.delay
        return delay.withhold if delay is not None and self.trainer.holding else ()

    def _refuse_bad_loss(self) -> None:
        bad = self.trainer.first_bad_step()
        if bad is None:
            return
        delay = self.trainer.delay
        phase = "delayed" if delay is not None and (delay.switch_step or bad) >= bad else "full"
        # A checkpoint is kept only if its loss, gradient and weights are numbers, so the last one is good.
        good = (
            f"the last good checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "no checkpoint was kept"
        )
        raise NonFiniteLossError(
            f"the loss, the gradient or the weights were no longer numbers at step {bad} (phase {phase}, "
            f"learning rate peak {getattr(self.config.training, phase).learning_rate:g}); {good}"
        )

    def _save(self) -> None:
        self._refuse_bad_loss()
        if self.folder is None or self.metrics is None:
            return
        state = {
            "step": self.trainer.step,
            "trainer": self.trainer.state(),
            "seconds": self.seconds,
            "metrics_bytes": self.metrics.secure(),
            "last_seen": self.last_seen,
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

    def _conclude(self, evaluation: Evaluation, seconds: float) -> TrainedRun:
        delay, model = self.trainer.delay, self.trainer.model
        result = {
            "config_hash": self.config.hash,
            "seed": self.config.seed,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "steps": self.trainer.step,
            "switch_step": None if delay is None else delay.switch_step,
            "switch_reason": None if delay is None else delay.switch_reason,
            "seconds": round(seconds, 2),
            "reach": evaluation.reach,
            "cliff": evaluation.cliff,
        }
        if self.folder is not None:
            model.save_pretrained(self.folder.model)
            write_json(self.folder.evaluation_file, evaluation.to_json())
            write_json(self.folder.result_file, result)
        self._tell("done", 1.0)
        return TrainedRun(self.config, model, evaluation, result, self.folder.path if self.folder else None)

    def _write(self, line: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write(line)

    def _tell(self, phase: str, tested: float = 0.0) -> None:
        self.observe(Progress(self.trainer.step, self.config.training.steps, phase, tested=tested, **self.last_seen))


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Training seeds torch's generators; the caller's are left as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C and SIGTERM into a question that the loop asks between steps; a second Ctrl-C stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
