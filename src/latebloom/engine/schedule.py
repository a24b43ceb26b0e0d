"""The learning rate of a step: a warm-up, then a cosine or a constant, anew in every phase unless told otherwise."""

from math import cos, pi

from latebloom.delay.policy import Delay
from latebloom.engine.settings import Phase, Training


def rate_of_step(training: Training, delay: Delay | None, switch_step: int | None, step: int) -> float:
    """The rate of step 0, 1, ... of a run whose switch was at `switch_step`, if it was already."""
    if delay is None:
        return learning_rate(training.full, step, training.steps)
    phase = training.delayed if switch_step is None else training.full
    if not training.restart:
        return learning_rate(phase, step, training.steps)
    if switch_step is None:
        return learning_rate(phase, step, delay.until.latest_step(training.steps))
    return learning_rate(phase, step - switch_step, training.steps - switch_step)


def learning_rate(phase: Phase, step: int, steps: int) -> float:
    """The rate of step 0, 1, ... of a phase that lasts `steps` steps."""
    each = max(1, steps // phase.cycles)
    cycle = min(step // each, phase.cycles - 1)
    step -= cycle * each
    steps = each if cycle < phase.cycles - 1 else steps - cycle * each
    if step < phase.warmup:
        return phase.learning_rate * (step + 1) / phase.warmup
    if phase.schedule == "constant":
        return phase.learning_rate
    done = (step - phase.warmup) / max(1, steps - phase.warmup)
    return phase.learning_rate * 0.5 * (1 + cos(pi * min(1.0, done)))


def unfinished_warmups(training: Training, delay: Delay | None) -> list[str]:
    """A sentence for each phase that is over before its warm-up, so that its rate never reaches the peak."""
    switch = 0 if delay is None else delay.until.latest_step(training.steps)
    said = []
    phases = [("delayed", training.delayed, switch), ("full", training.full, training.steps - switch)]
    if delay is not None and not training.restart:  # one schedule over both
        phases = [("delayed", training.delayed, training.steps)]
    for name, phase, length in phases:
        steps = max(1, length // phase.cycles)
        if length > 0 and steps <= phase.warmup:
            once = delay is not None and not training.restart
            fields = [f"training.{one}.warmup" for one in (("delayed", "full") if once else (name,))]
            where = f"a {'cycle' if phase.cycles > 1 else 'schedule' if once else 'phase'} of {steps}"
            said.append(
                f"{fields[0]}: a warm-up of {phase.warmup} steps in {where} ends at {steps / phase.warmup:.0%} "
                f"of the learning rate; set {' and '.join(f'{field}={steps // 10}' for field in fields)}, for example"
            )
    return said
