"""Error messages for training options that do not apply to a model, a task or a delay."""

from collections.abc import Iterator

from latebloom.delay.policy import Delay
from latebloom.delay.triggers import AtFraction, AtStep
from latebloom.engine.settings import Training
from latebloom.models.settings import Model
from latebloom.tasks.task import Task


def option_mistakes(training: Training, model: Model, task: Task, delay: Delay | None) -> Iterator[str]:
    """Yield a sentence for each option that has no effect or is not supported."""
    layout = f"a model of layout {model.layout!r}"
    of_attention = {
        "slow_attention": (training.slow_attention is not None, "null"),
        "drop_path": (training.drop_path is not None, "null"),
        "detach_attention": (training.detach_attention, "false"),
        "bypass_loss": (training.bypass_loss > 0, "0"),
    }
    for name, (is_set, off) in of_attention.items():
        if is_set and not model.has_attention:
            yield f"training.{name}: {layout} has no attention; set training.{name}={off}"
    if training.detach_attention and not model.is_recurrent:
        yield (
            f"training.detach_attention: {layout} mixes tokens with attention only, and what it reads would not be "
            "trained; set training.detach_attention=false"
        )
    of_recurrence = {"bypass_loss": training.bypass_loss > 0, "state_passing": training.state_passing > 0}
    for name, is_set in of_recurrence.items():
        if is_set and not model.is_recurrent:
            yield f"training.{name}: {layout} has no recurrence to track state with; set training.{name}=0"
    of_state = {"bypass_loss": of_attention["bypass_loss"], "project_gradients": (training.project_gradients, "false")}
    for name, (is_set, off) in of_state.items():
        if is_set and task.state_answer is None:
            yield f"training.{name}: the task {task.name} has no state answer; set training.{name}={off}"
        if is_set and delay is not None and task.state_answer in delay.withhold:
            yield (
                f"training.{name}: delay.withhold leaves the state answer {task.state_answer} out of the loss; "
                f"withhold another answer, or set training.{name}={off}"
            )
    if training.project_gradients and len(task.answers) == 1:
        yield (
            f"training.project_gradients: the task {task.name} has one answer, whose gradient opposes no other; set "
            "training.project_gradients=false"
        )
    if training.state_passing and task.carried_modulus is None:
        yield (
            f"training.state_passing: a sequence of the task {task.name} cannot continue another; set "
            "training.state_passing=0"
        )
    drop = training.drop_path
    if drop is not None and drop.falling and delay is not None and delay.hold in ("bypass", "ramp"):
        fallen = drop.falling * training.steps
        is_fixed = isinstance(delay.until, AtStep | AtFraction)
        if is_fixed and fallen <= (switch := delay.until.latest_step(training.steps)):
            yield (
                f"training.drop_path.falling: the probability falls to 0 by step {fallen:.0f}, and attention is left "
                f"out until step {switch}, so it has no effect; raise it, or set training.drop_path=null"
            )
    sizes = training.delayed.batch_size, training.full.batch_size
    if training.state_passing and delay is not None and sizes[0] != sizes[1]:
        yield (
            "training.state_passing: each row of a batch continues the same row of the batch before, so "
            f"delayed.batch_size {sizes[0]} and full.batch_size {sizes[1]} must be the same"
        )
    curriculum, shortest = training.curriculum, max(2, task.shortest)
    if curriculum is not None and not shortest <= curriculum.start < training.length:
        yield (
            f"training.curriculum.start: {curriculum.start} is not possible; it must be from {shortest}, the shortest "
            f"length of {task.name}, to {training.length - 1}, one less than training.length"
        )


def options_without_effect(training: Training, delay: Delay | None) -> Iterator[str]:
    """Yield a sentence for each option that changes nothing of a run.

    Earlier versions accepted these, so a run that has begun with one is opened and continued.
    """
    factors = {
        "recurrence_factor": (training.recurrence_factor, ""),
        "attention_factor": (training.attention_factor, ", or training.slow_attention.factor, which needs no delay"),
    }
    for name, (factor, instead) in factors.items():
        if delay is None and factor != 1:
            yield (
                f"training.{name}: {factor:g} has no effect without a delay, because it applies after the switch; set "
                f"training.{name}=1{instead}"
            )
