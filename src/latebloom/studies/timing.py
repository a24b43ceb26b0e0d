"""When should attention come in?"""

from collections.abc import Iterator

from latebloom.delay.triggers import at_fraction, when_beyond
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import (
    MANY_ARMS,
    Size,
    at_rate,
    base_config,
    composite,
    delayed,
    disturbed,
    middle_rates,
)
from latebloom.tasks import ModularSum, Task

PERCENTS = range(10, 100, 20)


@study("timing")
def timing(scale: Scale) -> Plan:
    """A switch at 10 to 90% of the steps, at two learning rates, against a switch when state tracking holds beyond."""
    size = MANY_ARMS[scale]
    low, high = middle_rates(size)
    arms = [*_arms(size, composite(), low), *_arms(size, composite(), high), *_arms(size, ModularSum(), high)]
    return Plan(arms, range(size.seeds))


def _arms(size: Size, task: Task, rate: float) -> Iterator[Arm]:
    run = disturbed(at_rate(base_config(size, task), rate))
    for percent in PERCENTS:
        yield Arm(f"at {percent}% ({rate:g})", delayed(run, at_fraction(percent / 100)))
    # At a stricter bar, such as 0.98 at three times the length, it comes later than it need.
    beyond = when_beyond(0.8, multiple=2, every=max(10, size.steps // 50), latest=int(0.9 * size.steps))
    yield Arm(f"when beyond ({rate:g})", delayed(run, beyond))
    yield Arm(f"joint ({rate:g})", run)
