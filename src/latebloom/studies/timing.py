"""When should attention come in?"""

from latebloom.delay.triggers import at_fraction, when_beyond
from latebloom.studies.plan import Arm, Plan, Scale, study
from latebloom.studies.scales import SIZES, at_rate, base_config, composite, delayed, seeds


@study("timing")
def timing(scale: Scale) -> Plan:
    """A switch at 10 to 90% of the steps, at two learning rates, against a switch when state tracking holds beyond."""
    size = SIZES[scale]
    base = base_config(size, composite(size))
    arms = []
    for rate in size.rates[-3:-1]:
        run = at_rate(base, rate, rate / 2)
        for percent in range(10, 100, 20):
            arms.append(Arm(f"at {percent}%, {rate:g}", delayed(run, at_fraction(percent / 100))))
        beyond = when_beyond(0.98, multiple=3, every=max(10, size.steps // 50), latest=int(0.9 * size.steps))
        arms.append(Arm(f"when beyond, {rate:g}", delayed(run, beyond)))
        arms.append(Arm(f"joint, {rate:g}", at_rate(base, rate)))
    return Plan(arms, seeds(size))
