"""The record of one run: the files in its folder, and the progress for its observer."""

from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.checkpoint import write_json
from latebloom.engine.folder import MetricsFile, RunFolder
from latebloom.engine.outcome import Observer, Progress, TrainedRun
from latebloom.errors import NonFiniteLossError
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.models.sequence_model import SequenceModel


class Journal:
    """Metrics, observer and result of one run; nothing is saved if the folder is None."""

    def __init__(self, config: RunConfig, folder: RunFolder | None, observe: Observer | None) -> None:
        self.config, self.folder = config, folder
        self._observe = observe or (lambda progress: None)
        self._metrics: MetricsFile | None = None
        self._last_seen: dict[str, float | None] = {"loss": None, "accuracy": None, "accuracy_beyond": None}
        self._unreported: dict[str, float] = {}

    def open(self, state: dict[str, Any] | None) -> None:
        """Begin, or continue from a `state()`; metrics that were written after it are removed."""
        written, digest = 0, None
        if state is not None:
            written, digest = state["metrics_bytes"], state["metrics_digest"]
            self._last_seen = dict(state["last_seen"])
        if self.folder is not None:
            self._metrics = MetricsFile(self.folder.metrics_file, written, digest)

    def state(self) -> dict[str, Any]:
        """Flush the metrics to disk and return what `open` needs to continue."""
        return {
            "metrics_bytes": self._metrics.secure() if self._metrics else 0,
            "metrics_digest": self._metrics.digest if self._metrics else None,
            "last_seen": dict(self._last_seen),
        }

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def log(self, step: int, phase: str, rate: float, means: dict[str, float]) -> None:
        """Record the mean losses up to a step; `phase` and `rate` are those of that step."""
        self._last_seen["loss"] = means["loss"]
        self._write({"step": step, "phase": phase, "learning_rate": rate} | means)
        switch = {} if self.config.delay is None else {"attention_is_in": float(phase == "full")}
        self._unreported |= {
            f"train/{name}": value for name, value in ({"learning_rate": rate} | switch | means).items()
        }

    def switched(self, step: int, reason: str | None) -> None:
        self._write({"step": step, "switch": reason})

    def checked(self, step: int, counts: list[Count], withheld: tuple[str, ...]) -> None:
        """Record held-out accuracy at the watched lengths; the shown accuracy excludes withheld answers."""
        length = self.config.training.length
        line: dict[str, Any] = {"step": step, "check": {}}
        for count in counts:
            named = {name: count.accuracy_of(name) for name in count.answers}
            line["check"][str(count.length)] = {"accuracy": count.accuracy} | named
            self._unreported |= {f"check/{count.length}/{name}": right for name, right in named.items()}
            self._unreported[f"check/{count.length}/accuracy"] = count.accuracy
            supervised = [right for name, right in named.items() if name not in withheld]
            if count.length in (length, CLAIM * length):
                seen = min(supervised) if withheld else count.accuracy
                self._last_seen["accuracy" if count.length == length else "accuracy_beyond"] = seen
        self._write(line)

    def report(self, step: int, phase: str, tested: float = 0.0, evaluation: Evaluation | None = None) -> None:
        numbers, self._unreported = self._unreported, {}
        more = {"numbers": numbers, "evaluation": evaluation, "tested": tested}
        self._observe(Progress(step, self.config.training.steps, phase, **self._last_seen, **more))

    def conclude(
        self,
        model: SequenceModel,
        evaluation: Evaluation,
        *,
        switch_step: int | None,
        switch_reason: str | None,
        seconds: float,
        stacked: int,
    ) -> TrainedRun:
        """Write model, evaluation and result of a finished run, the result last."""
        result = {
            "config_hash": self.config.hash,
            "seed": self.config.seed,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "steps": self.config.training.steps,
            "switch_step": switch_step,
            "switch_reason": switch_reason,
            "seconds": round(seconds, 2),
            "stacked": stacked,
            "reach": evaluation.reach,
            "cliff": evaluation.cliff,
        }
        if self.folder is not None:
            model.save_pretrained(self.folder.model)
            write_json(self.folder.evaluation_file, evaluation.to_json())
            write_json(self.folder.result_file, result)
        self.report(self.config.training.steps, "done", 1.0, evaluation)
        return TrainedRun(self.config, model, evaluation, result, self.folder.path if self.folder else None)

    def non_finite(self, step: int, switch_step: int | None, last_checkpoint: Path | None) -> NonFiniteLossError:
        """Return the error for a run whose loss, gradient or weights are not finite."""
        delayed = self.config.delay is not None and (switch_step is None or switch_step >= step)
        phase = "delayed" if delayed else "full"
        # A checkpoint is saved only if loss, gradient and weights are finite, so the last one is good.
        good = f"the last good checkpoint is {last_checkpoint}" if last_checkpoint else "no checkpoint was saved"
        return NonFiniteLossError(
            f"the loss, the gradient or the weights were not finite at step {step} (phase {phase}, "
            f"learning rate peak {getattr(self.config.training, phase).learning_rate:g}); {good}"
        )

    def _write(self, line: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.write(line)
