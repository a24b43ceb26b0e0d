"""The learning rate of a step: a warm-up, then a cosine or a constant, anew in every phase."""

from math import cos, pi

from latebloom.training.settings import Delay, Phase, Training


def learning_rate(phase: Phase, step: int, steps: int) -> float:
    """The rate of step 0, 1, ... of a phase that lasts `steps` steps."""
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
    for name, phase, steps in (("delayed", training.delayed, switch), ("full", training.full, training.steps - switch)):
        if 0 < steps <= phase.warmup:
            field = f"training.{name}.warmup"
            said.append(
                f"{field}: a warm-up of {phase.warmup} steps in a phase of {steps} ends at {steps / phase.warmup:.0%} "
                f"of the learning rate; set {field}={steps // 10}, for example"
            )
    return said
