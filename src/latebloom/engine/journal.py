"""The record of one run: the files in its folder, and the progress for its observer."""

import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

from latebloom.config import RunConfig
from latebloom.engine.files import flush_folder, naming
from latebloom.engine.folder import RunFolder
from latebloom.engine.outcome import Observer, Progress, TrainedRun
from latebloom.engine.run_state import RunState
from latebloom.errors import CheckpointError, NonFiniteLossError
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.models.sequence_model import SequenceModel
from latebloom.reading import open_plain, read_plain


class Journal:
    """Metrics, observer and result of one run; nothing is saved if the folder is None."""

    def __init__(self, config: RunConfig, folder: RunFolder | None, observe: Observer | None) -> None:
        self.config, self.folder = config, folder
        self._observe = observe or (lambda progress: None)
        self._metrics: IO[bytes] | None = None
        self._digest, self._size = hashlib.sha256(), 0
        """The digest of metrics.jsonl, which shows whether another run wrote into it."""
        self._last_seen: dict[str, float | None] = {"loss": None, "accuracy": None, "accuracy_beyond": None}
        self._unreported: dict[str, float] = {}

    def open(self, state: dict[str, Any] | None) -> None:
        """Begin, or continue from a `state()`; metrics that were written after it are removed."""
        size, digest = 0, None
        if state is not None:
            size, digest, self._last_seen = state["metrics_bytes"], state["metrics_digest"], dict(state["last_seen"])
        if self.folder is None:
            return
        path = self.folder.metrics_file
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._metrics = open(open_plain(path, flags), "ab")  # noqa: SIM115 (closed by `close`)
        flush_folder(path.parent)
        kept = read_plain(path)[:size]
        self._digest.update(kept)
        if len(kept) < size:
            raise CheckpointError(f"{path} is damaged: it is shorter than at its checkpoint")
        if digest not in (None, self._digest.hexdigest()):
            raise CheckpointError(f"{path} is damaged: another run has written into it")
        with naming(path):
            self._metrics.truncate(size)
        self._size = size

    def state(self) -> dict[str, Any]:
        """Flush the metrics to disk and return what `open` needs to continue."""
        assert self.folder is not None, "a run without a folder has no checkpoints"
        assert self._metrics is not None
        self._check_metrics()
        with naming(self.folder.metrics_file):
            os.fsync(self._metrics.fileno())
        digest = self._digest.hexdigest()
        return {"metrics_bytes": self._size, "metrics_digest": digest, "last_seen": dict(self._last_seen)}

    def _check_metrics(self) -> None:
        """Raise if the folder or metrics.jsonl is no longer what this process opened, or another one wrote into it."""
        if self.folder is None or self._metrics is None:
            return
        self.folder.check_owned()
        path, opened = self.folder.metrics_file, os.fstat(self._metrics.fileno())
        if not path.exists() or not os.path.samestat(os.stat(path, follow_symlinks=False), opened):
            raise CheckpointError(f"{path} was removed or replaced while the run was training; the run stops")
        if opened.st_size != self._size:
            raise CheckpointError(f"{path} was changed by another process while the run was training; the run stops")

    def close(self) -> None:
        if self.folder is not None and self._metrics is not None:
            with naming(self.folder.metrics_file):
                self._metrics.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self.folder is not None and self._metrics is not None:
            self._check_metrics()
            content = (json.dumps(line) + "\n").encode()
            self._digest.update(content)
            with naming(self.folder.metrics_file):
                self._metrics.write(content)
                self._metrics.flush()
            self._size += len(content)

    def log(self, step: int, run: RunState, means: dict[str, float]) -> None:
        """Record the mean losses up to a step, with the phase and the learning rate of that step."""
        self._last_seen["loss"] = means["loss"]
        rate = {"learning_rate": run.rate_done}
        self._write({"step": step, "phase": run.phase_done} | rate | means)
        switch = {} if self.config.delay is None else {"attention_is_in": float(run.phase_done == "full")}
        self._unreported |= {f"train/{name}": value for name, value in (rate | switch | means).items()}

    def probed(self, step: int, interference: dict[str, Any]) -> None:
        """Record the interference at a step."""
        self._write({"step": step, "interference": interference})

    def forget_accuracies(self) -> None:
        """Show no accuracy until the next check, because the last one was of fewer answers."""
        if self.config.delay is not None and self.config.delay.withhold:
            self._last_seen |= {"accuracy": None, "accuracy_beyond": None}

    def switched(self, step: int, reason: str | None) -> None:
        """Record the switch."""
        self._write({"step": step, "switch": reason})

    def checked(self, step: int, counts: list[Count], withheld: tuple[str, ...]) -> None:
        """Record held-out accuracy at the watched lengths; the shown accuracy excludes withheld answers."""
        shown = {self.config.training.length: "accuracy", CLAIM * self.config.training.length: "accuracy_beyond"}
        line: dict[str, Any] = {"step": step, "check": {}}
        for count in counts:
            answers = {name: count.accuracy_of(name) for name in count.answers}
            named = {"accuracy": count.accuracy} | answers
            line["check"][str(count.length)] = named
            self._unreported |= {f"check/{count.length}/{name}": right for name, right in named.items()}
            if count.length in shown:
                supervised = [right for name, right in answers.items() if name not in withheld]
                self._last_seen[shown[count.length]] = min(supervised) if withheld else count.accuracy
        self._write(line)

    def report(self, step: int, phase: str, tested: float = 0.0, evaluation: Evaluation | None = None) -> None:
        numbers, self._unreported = self._unreported, {}
        more = {"numbers": numbers, "evaluation": evaluation, "tested": tested}
        self._observe(Progress(step, self.config.training.steps, phase, **self._last_seen, **more))

    def conclude(
        self, run: RunState, model: SequenceModel, evaluation: Evaluation, *, seconds: float, stacked: int
    ) -> TrainedRun:
        """Write model, evaluation and result of a finished run, the result last."""
        result = {
            "config_hash": self.config.hash,
            "seed": self.config.seed,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "steps": self.config.training.steps,
            "switch_step": run.switch.step,
            "switch_reason": run.switch.reason,
            "seconds": round(seconds, 2),
            "stacked": stacked,
            "reach": evaluation.reach,
            "cliff": evaluation.cliff,
            "manifest": True,
        }
        if self.folder is not None:
            self._check_metrics()
            self.folder.write_result(model.files(), evaluation, result)
        self.report(self.config.training.steps, "done", 1.0, evaluation)
        return TrainedRun(self.config, model, evaluation, result, self.folder.path if self.folder else None)

    def non_finite(self, run: RunState, last_checkpoint: Path | None) -> NonFiniteLossError:
        """Return the error for a run whose loss, gradient or weights are not finite."""
        step, switch_step = run.failed_step, run.switch.step
        assert step is not None
        delayed = self.config.delay is not None and (switch_step is None or switch_step >= step)
        phase = "delayed" if delayed else "full"
        # A checkpoint is saved only if loss, gradient and weights are finite, so the last one is good.
        good = f"the last good checkpoint is {last_checkpoint}" if last_checkpoint else "no checkpoint was saved"
        return NonFiniteLossError(
            f"the loss, the gradient or the weights were not finite at step {step} (phase {phase}, "
            f"learning rate peak {getattr(self.config.training, phase).learning_rate:g}); {good}"
        )
