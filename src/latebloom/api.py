"""Training from its pieces, with a progress bar: what a notebook or a script wants."""

from pathlib import Path

from latebloom.config import RunConfig
from latebloom.evaluation.result import CLAIM
from latebloom.evaluation.settings import Evaluating
from latebloom.models.settings import Model
from latebloom.tasks import Task
from latebloom.training.loop import TrainedRun, run
from latebloom.training.settings import Delay, Training


def train(
    task: Task,
    model: Model,
    delay: Delay | None = None,
    training: Training | None = None,
    *,
    evaluation: Evaluating | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
) -> TrainedRun:
    """Train a model on a task, with its attention delayed if a delay is given, and test it at several lengths.

    With `out`, everything is kept in that folder, and the same call goes on where an interrupted one stopped.
    """
    config = RunConfig(
        task=task,
        model=model,
        delay=delay,
        training=training or Training(),
        evaluation=evaluation or Evaluating(),
        seed=seed,
    )
    return run_with_bar(config, out, device=device)


def run_with_bar(config: RunConfig, out: str | Path | None = None, *, device: str | None = None) -> TrainedRun:
    """`run`, with a progress bar."""
    from latebloom.progress import RunBars  # rich is imported when there is something to show

    name = "dat" if config.delay is not None else "run"
    with RunBars([name], config.training.length, CLAIM) as bars:
        return run(config, out, device=device, observe=bars.observer(name))
