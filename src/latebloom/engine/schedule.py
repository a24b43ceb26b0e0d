"""Learning rate schedules: a warm-up, then a cosine or a constant, restarted in each phase by default."""

from math import cos, pi

from latebloom.delay.policy import Delay
from latebloom.engine.settings import Phase, Training


def rate_of_step(training: Training, delay: Delay | None, switch_step: int | None, step: int) -> float:
    """Return the learning rate at step 0, 1, ...; `switch_step` is None until the switch."""
    if delay is None:
        return learning_rate(training.full, step, training.steps)
    phase = training.delayed if switch_step is None else training.full
    if not training.restart:
        return learning_rate(phase, step, training.steps)
    if switch_step is None:
        return learning_rate(phase, step, delay.until.latest_step(training.steps))
    return learning_rate(phase, step - switch_step, training.steps - switch_step)


def learning_rate(phase: Phase, step: int, steps: int) -> float:
    """Return the learning rate at step 0, 1, ... of a phase with `steps` steps."""
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
    """Return a warning for each phase that ends before its warm-up, so that it never reaches its peak rate."""
    switch = 0 if delay is None else delay.until.latest_step(training.steps)
    spans = [("phase", ["delayed"], switch), ("phase", ["full"], training.steps - switch)]
    if delay is not None and not training.restart:
        spans = [("schedule", ["delayed", "full"], training.steps)]  # one over both
    warnings = []
    for kind, phases, length in spans:
        phase: Phase = getattr(training, phases[0])
        steps = max(1, length // phase.cycles)
        if length > 0 and steps <= phase.warmup:
            settings = " and ".join(f"training.{name}.warmup={steps // 10}" for name in phases)
            warnings.append(
                f"training.{phases[0]}.warmup: a warm-up of {phase.warmup} steps in a "
                f"{'cycle' if phase.cycles > 1 else kind} of {steps} ends at {steps / phase.warmup:.0%} "
                f"of the learning rate; set {settings}, for example"
            )
    return warnings
