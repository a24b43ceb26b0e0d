"""The study `timing`: the time at which attention is enabled."""

from collections.abc import Iterator

from latebloom.delay.triggers import at_fraction, when_beyond
from latebloom.models.settings import hybrid
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    LOG_N,
    MANY_ARMS,
    Size,
    at_rate,
    base_config,
    composite,
    middle_rates,
    staged,
    with_state_noise,
)
from latebloom.tasks import ModularSum, Task

PERCENTS = range(10, 100, 20)
BEYOND = (3, 8)
"""Multiples of the training length at which `when_beyond` measures state tracking."""


@study("timing")
def timing(scale: Scale) -> Plan:
    """A switch at 10 to 90% of the steps, at two learning rates, against one when state tracking holds beyond."""
    size = MANY_ARMS[scale]
    low, high = middle_rates(size)
    arms = [*_arms(size, composite(), low), *_arms(size, composite(), high), *_arms(size, ModularSum(), high)]
    return Plan(arms, range(size.seeds))


def _arms(size: Size, task: Task, rate: float) -> Iterator[Arm]:
    run = at_rate(base_config(size, task, hybrid(width=size.width, **LOG_N)), rate)
    run = with_state_noise(run, size)
    when = {multiple: f"when beyond {multiple}x ({rate:g})" for multiple in BEYOND}
    default = when[BEYOND[0]]
    for percent in PERCENTS:
        yield Arm(f"at {percent}% ({rate:g})", staged(run, at_fraction(percent / 100)), against=default)
    for multiple, name in when.items():
        trigger = when_beyond(multiple=multiple, every=max(10, size.steps // 50), latest=int(0.9 * size.steps))
        yield Arm(name, staged(run, trigger), against=() if name == default else default)
    yield Arm(f"joint ({rate:g})", run, against=default)
