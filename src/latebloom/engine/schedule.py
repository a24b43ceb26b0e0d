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
    warnings = []
    phases = [("delayed", training.delayed, switch), ("full", training.full, training.steps - switch)]
    if delay is not None and not training.restart:  # one schedule over both
        phases = [("delayed", training.delayed, training.steps)]
    for name, phase, length in phases:
        steps = max(1, length // phase.cycles)
        if length > 0 and steps <= phase.warmup:
            once = delay is not None and not training.restart
            fields = [f"training.{phase_name}.warmup" for phase_name in (("delayed", "full") if once else (name,))]
            where = f"a {'cycle' if phase.cycles > 1 else 'schedule' if once else 'phase'} of {steps}"
            warnings.append(
                f"{fields[0]}: a warm-up of {phase.warmup} steps in {where} ends at {steps / phase.warmup:.0%} "
                f"of the learning rate; set {' and '.join(f'{field}={steps // 10}' for field in fields)}, for example"
            )
    return warnings
