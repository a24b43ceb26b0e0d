"""A plan with rounds of tuning that stop runs early."""

from dataclasses import replace

import pytest

from latebloom import at_step
from latebloom.studies.plan import Arm, Plan, Round

RATES = (1e-12, 3e-3, 1e-2, 3e-2)


@pytest.fixture
def plan(tiny) -> Plan:
    """Four rates: all for 6 of 12 steps on one seed, two to step 9, and one or two to the end on one more seed."""
    same = replace(tiny.training, steps=12, delayed=tiny.training.full, check_every=6)
    dat = replace(tiny, training=same, delay=replace(tiny.delay, until=at_step(8)))
    choices = tuple(
        replace(dat, training=replace(same, delayed=replace(same.full, learning_rate=rate))) for rate in RATES
    )
    rounds = (Round(seeds=(9,), share=0.5), Round(share=0.75, keep=2), Round(seeds=(10,)))
    return Plan([Arm("dat", dat, choices)], seeds=(0,), rounds=rounds)
