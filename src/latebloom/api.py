"""Training with a progress bar, for a notebook or a script."""

from contextlib import nullcontext
from pathlib import Path

from latebloom.config import RunConfig
from latebloom.delay.policy import Delay
from latebloom.engine.loop import Progress, TrainedRun, run
from latebloom.engine.settings import Training
from latebloom.errors import ConfigError
from latebloom.evaluation.settings import Evaluating
from latebloom.models.settings import Model
from latebloom.tasks import Task


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
    track: str | None = None,
) -> TrainedRun:
    """Train a model on a task, with delayed attention if a delay is given, and test it at several lengths.

    With `out`, everything is saved in that folder, and the same call continues an interrupted run. `track` sends the
    curves to tensorboard, wandb or trackio while the run trains.
    """
    config = RunConfig(
        task=task,
        model=model,
        delay=delay,
        training=training or Training(),
        evaluation=evaluation or Evaluating(),
        seed=seed,
    )
    return run_with_bar(config, out, device=device, track=track)


def run_with_bar(
    config: RunConfig, out: str | Path | None = None, *, device: str | None = None, track: str | None = None
) -> TrainedRun:
    """Call `run` with a progress bar, and with live curves if a tracker is named."""
    from latebloom.progress import RunProgress  # rich is imported when there is something to show
    from latebloom.trackers import Tracked

    if track is not None and out is None:
        raise ConfigError(f"track: {track} needs a folder to name the run after; give out")
    folder = None if out is None else Path(out).absolute()
    name = "run" if folder is None else folder.name
    with (
        Tracked(track, Path(out), config) if track is not None and out is not None else nullcontext() as tracked,
        RunProgress() as bars,
    ):
        is_shown = False

        def observe(progress: Progress) -> None:
            nonlocal is_shown
            if not is_shown:  # a run that is refused, or finished already, shows no progress
                bars.expect({name: config}, folder and folder.parent)
                is_shown = True
            bars.show(name, progress)
            if tracked is not None:
                tracked(progress)

        return run(config, out, device=device, observe=observe)
