"""Extending a run: with which settings may its newest checkpoint be continued?

A run may be extended if the steps that it has done are those that the extended run would have done from the start.
Then it ends with the same weights as a run that had the new settings all along.
"""

from latebloom.config import RunConfig
from latebloom.delay.policy import Delay
from latebloom.differences import differences
from latebloom.engine.schedule import rate_of_step

FREE = ("training.steps", "training.log_every", "training.check_every", "training.checkpoint_every", "evaluation.")
"""Settings that may change; the learning rates that follow from them are compared."""


def is_extension(found: RunConfig, wanted: RunConfig) -> bool:
    """Return whether two configurations differ in nothing but `FREE` settings."""
    return all(name.startswith(FREE) for name, _, _ in differences(found.to_json(), wanted.to_json()))


def extension_obstacle(found: RunConfig, wanted: RunConfig, done: int, switch_step: int | None) -> str:
    """Return why a run with other `FREE` settings cannot be continued after `done` steps; nothing if it can."""
    steps = wanted.training.steps
    if steps < done:
        return f"training.steps: {done} steps are done already, more than {steps}"
    if found.delay is not None and not _switches_alike(found.delay, found.training.steps, steps, done, switch_step):
        return (
            f"training.steps: with {steps} steps in place of {found.training.steps} the switch is at another step, so "
            f"the {done} steps that are done cannot be continued"
        )
    for step in range(done):
        switched = switch_step if switch_step is not None and step >= switch_step else None
        rates = [rate_of_step(config.training, config.delay, switched, step) for config in (found, wanted)]
        if rates[0] != rates[1]:
            return (
                f"training.steps: with {steps} steps in place of {found.training.steps} the learning rate schedule is "
                f"another from step {step} on, so the {done} steps that are done cannot be continued; a run with "
                "schedule=constant can be extended"
            )
    return ""


def _switches_alike(delay: Delay, before: int, after: int, done: int, switch_step: int | None) -> bool:
    """Return whether the trigger decides the steps that are done in the same way for another number of steps."""
    if delay.until.latest_step(before) == delay.until.latest_step(after):
        return True
    return switch_step is None and delay.until.latest_step(after) > done
