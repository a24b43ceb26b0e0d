"""Extending a run: the settings with which its newest checkpoint can be continued.

A run can be extended if the steps it has done are the same with the new settings. Then it ends with the same weights as
a run that had the new settings from the start.
"""

from latebloom.config import RunConfig
from latebloom.differences import differences
from latebloom.engine.schedule import rate_of_step

FREE = (
    "training.steps",
    "training.log_every",
    "training.check_every",
    "training.checkpoint_every",
    "training.probe_every",
    "evaluation.",
)
"""Settings that may change; the learning rates that result from them are compared."""

SCHEDULED = {
    "drop_path": "sequences skip attention with another probability",
    "curriculum": "the longest length is another one",
}
"""Options of training that depend on the number of steps."""


def is_extension(found: RunConfig, wanted: RunConfig) -> bool:
    """Return whether two configurations differ only in `FREE` settings."""
    return all(name.startswith(FREE) for name, _, _ in differences(found.to_json(), wanted.to_json()))


def extension_obstacle(found: RunConfig, wanted: RunConfig, done: int, switch_step: int | None) -> str:
    """Return the reason why a run cannot be continued with other `FREE` settings after `done` steps, or ""."""
    steps = wanted.training.steps
    if steps < done:
        return f"training.steps: {done} steps are done already, more than {steps}"
    latest = [found.delay.until.latest_step(n) for n in (found.training.steps, steps)] if found.delay else [0, 0]
    if latest[0] != latest[1] and (switch_step is not None or latest[1] <= done):
        return (
            f"training.steps: with {steps} steps instead of {found.training.steps} the switch is at another step, so "
            f"the {done} steps that are done cannot be continued"
        )
    window = found.model.attention.random_window if found.model.has_attention else None
    if window is not None:
        ends = [window.last_step(n) for n in (found.training.steps, steps)]
        if ends[0] != ends[1] and min(ends) < done:
            return (
                f"training.steps: with {steps} steps instead of {found.training.steps} the short windows end at step "
                f"{ends[1]} instead of {ends[0]}, so the {done} steps that are done cannot be continued"
            )
    for name, what in SCHEDULED.items():
        schedules = [_schedule(config, name, done) for config in (found, wanted)]
        differing = [step for step, (one, other) in enumerate(zip(*schedules, strict=True)) if one != other]
        if differing:
            return (
                f"training.steps: with {steps} steps instead of {found.training.steps} {what} from step {differing[0]} "
                f"on (training.{name}), so the {done} steps that are done cannot be continued"
            )
    for step in range(done):
        switched = switch_step if switch_step is not None and step >= switch_step else None
        rates = [rate_of_step(config.training, config.delay, switched, step) for config in (found, wanted)]
        if rates[0] != rates[1]:
            return (
                f"training.steps: with {steps} steps instead of {found.training.steps} the learning rate schedule "
                f"differs from step {step} on, so the {done} steps that are done cannot be continued: the rates of "
                "a cosine schedule depend on the number of steps; a run with training.full.schedule=constant can be "
                "extended"
            )
    return ""


def _schedule(config: RunConfig, option: str, done: int) -> list[float]:
    """Return the values of an option of training that changes from step to step, for the first steps."""
    training = config.training
    if option == "drop_path":
        drop = training.drop_path
        return [] if drop is None else [drop.at(step, training.steps) for step in range(done)]
    curriculum = training.curriculum
    return [] if curriculum is None else [curriculum.at(step, training.steps, training.length) for step in range(done)]
