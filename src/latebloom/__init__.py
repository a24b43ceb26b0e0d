"""Latebloom: delayed attention training, for sequence models that generalize beyond their training length.

Each public name is imported when it is first used, so that the command line responds before torch is imported. None of
them imports more than torch and the standard library until it is called.
"""

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the time to import typing
if TYPE_CHECKING:
    from latebloom.api import train
    from latebloom.config import RunConfig, load_config
    from latebloom.delay import DelayedAttention, at_fraction, at_step, at_tokens, when, when_beyond, when_plateau
    from latebloom.delay.bypass import bypass_attention, enable_attention
    from latebloom.delay.policy import Delay
    from latebloom.engine.loop import TrainedRun, run
    from latebloom.engine.settings import Phase, Training
    from latebloom.errors import LatebloomError
    from latebloom.evaluation import Evaluating, Evaluation, evaluate
    from latebloom.models import SequenceModel, hybrid, lstm, match_parameters, transformer
    from latebloom.probes.inspect import Inspection, inspect
    from latebloom.recipes import recipe
    from latebloom.report.charts import plot
    from latebloom.tasks import Composite, ModularSum, Recall, Task

__version__ = "0.1.0"

__all__ = [
    "Composite",
    "Delay",
    "DelayedAttention",
    "Evaluating",
    "Evaluation",
    "Inspection",
    "LatebloomError",
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
    "bypass_attention",
    "enable_attention",
    "evaluate",
    "hybrid",
    "inspect",
    "load_config",
    "lstm",
    "match_parameters",
    "plot",
    "recipe",
    "run",
    "train",
    "transformer",
    "when",
    "when_beyond",
    "when_plateau",
]

_HOMES = {
    "api": "train",
    "config": "RunConfig load_config",
    "delay": "DelayedAttention at_fraction at_step at_tokens when when_beyond when_plateau",
    "errors": "LatebloomError",
    "evaluation": "Evaluating Evaluation evaluate",
    "models": "SequenceModel hybrid lstm match_parameters transformer",
    "probes.inspect": "Inspection inspect",
    "recipes": "recipe",
    "report.charts": "plot",
    "tasks": "Composite ModularSum Recall Task",
    "engine.loop": "TrainedRun run",
    "delay.bypass": "bypass_attention enable_attention",
    "delay.policy": "Delay",
    "engine.settings": "Phase Training",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # or a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _HOME_OF:
            globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
            return globals()[name]
        if find_spec(f"{__name__}.{name}") is not None:  # a package or module, such as latebloom.errors
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
