"""The learning rate of a step: a warm-up, then a cosine or a constant, anew in every phase."""

from math import cos, pi

from latebloom.training.settings import Phase


def learning_rate(phase: Phase, step: int, steps: int) -> float:
    """The rate of step 0, 1, ... of a phase that lasts `steps` steps."""
    if step < phase.warmup:
        return phase.learning_rate * (step + 1) / phase.warmup
    if phase.schedule == "constant":
        return phase.learning_rate
    done = (step - phase.warmup) / max(1, steps - phase.warmup)
    return phase.learning_rate * 0.5 * (1 + cos(pi * min(1.0, done)))
