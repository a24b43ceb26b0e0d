"""The progress of a run while it trains, and the finished run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.errors import CheckpointError, NonFiniteLossError
from latebloom.evaluation.evaluate import evaluate
from latebloom.evaluation.result import Evaluation
from latebloom.layers.precision import precision
from latebloom.models.sequence_model import SequenceModel


@dataclass(frozen=True)
class Progress:
    """The progress of a run, as its observer receives it."""

    step: int
    steps: int
    phase: str
    """delayed, full, testing, paused, done or failed."""
    loss: float | None = None
    accuracy: float | None = None
    """Held-out accuracy at the training length, of the answers that are supervised in this phase."""
    accuracy_beyond: float | None = None
    """The same at three times the training length."""
    tested: float = 0.0
    """The share of the final evaluation that is done."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Metrics since the last report by name, such as train/loss or check/75/accuracy."""
    evaluation: Evaluation | None = None
    """The final evaluation, when done."""

    @classmethod
    def of_failed(cls, steps: int) -> "Progress":
        """Return the progress of a failed run of `steps` steps."""
        return cls(0, steps, "failed")


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run."""

    config: RunConfig
    """What was trained, and how."""
    model: SequenceModel
    """The trained model, in evaluation mode."""
    evaluation: Evaluation
    """The accuracy by length at the end of training."""
    result: dict[str, Any]
    """steps, switch_step, switch_reason, seconds, parameters, seed, reach, cliff and the configuration's hash."""
    folder: Path | None = None
    """The folder of the run; None if it was not saved."""

    @property
    def switch_step(self) -> int | None:
        """The step after which attention was enabled; None if it was not delayed."""
        return self.result["switch_step"]

    def evaluate(
        self,
        lengths: list[int] | None = None,
        *,
        sequences: int | None = None,
        device: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Evaluation:
        """Return the accuracy by length, at other lengths or on another number of sequences."""
        with precision(self.config.training.precision):
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
        """Return the finished run in a folder."""
        folder = RunFolder(path)
        config = folder.read_config()
        if not folder.is_finished:
            raise CheckpointError(f"{path} is not finished; continue with: latebloom train --out {path}")
        result = folder.read_result(config)
        model = SequenceModel.from_pretrained(folder.model)
        evaluation = folder.read_evaluation()
        return cls(config, model, evaluation, result, folder.path)


@dataclass(frozen=True)
class Outcome:
    """The trained runs, and the error of each run that failed."""

    trained: dict[str, TrainedRun]
    failed: dict[str, NonFiniteLossError]
    is_dissolved: bool = False
    """Whether the runs were paused, each with a checkpoint of its own."""
