"""Latebloom: sequence models trained short that work long, by letting attention in late.

These are the public names. None of them imports more than torch until it is used.
"""

from latebloom.api import train
from latebloom.config import RunConfig, load_config
from latebloom.delay import DelayedAttention, at_fraction, at_step, at_tokens, when, when_beyond, when_plateau
from latebloom.evaluation import Evaluating, Evaluation, evaluate
from latebloom.models import SequenceModel, hybrid, lstm, transformer
from latebloom.probes.inspect import Inspection, inspect
from latebloom.recipes import recipe
from latebloom.report.charts import plot
from latebloom.tasks import Composite, ModularSum, Recall, Task
from latebloom.training.loop import TrainedRun, run
from latebloom.training.settings import Delay, Phase, Training

__version__ = "0.1.0"

__all__ = [
    "Composite",
    "Delay",
    "DelayedAttention",
    "Evaluating",
    "Evaluation",
    "Inspection",
    "ModularSum",
    "Phase",
    "Recall",
    "RunConfig",
    "SequenceModel",
    "Task",
    "TrainedRun",
    "Training",
    "at_fraction",
    "at_step",
    "at_tokens",
    "evaluate",
    "hybrid",
    "inspect",
    "load_config",
    "lstm",
    "plot",
    "recipe",
    "run",
    "train",
    "transformer",
    "when",
    "when_beyond",
    "when_plateau",
]
