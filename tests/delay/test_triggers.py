"""Triggers: when attention is enabled."""

import pytest

from latebloom.delay import at_fraction, at_step, when_beyond
from latebloom.delay.triggers import Moment
from latebloom.errors import ConfigError


def fires(trigger, steps=100, measure=None) -> tuple[int, str]:
    memory: dict = {}
    for step in range(1, steps + 1):
        reason = trigger.decide(Moment(step, steps, measure), memory)
        if reason is not None:
            return step, reason
    raise AssertionError("never fired")


def test_at_step_fires_at_its_step():
    assert fires(at_step(7)) == (7, "step 7 was reached")


def test_at_fraction_fires_at_its_share_of_the_steps():
    assert fires(at_fraction(0.25)) == (25, "0.25 of 100 steps were done")
    with pytest.raises(ConfigError, match="needs the total number of steps"):
        at_fraction(0.5).latest_step(None)


def test_when_beyond_waits_for_checks_in_a_row():
    seen = iter([0.97, 0.90, 0.96, 0.97, 0.99])
    asked = []

    def measure(multiple):
        asked.append(multiple)
        return next(seen)

    step, reason = fires(when_beyond(0.95, latest=90, checks=2, every=10, multiple=3), measure=measure)
    assert step == 40
    assert reason == "state tracking at 3x was at 0.970, for 2 checks in a row at 0.95 or more"
    assert asked == [3, 3, 3, 3]


def test_when_beyond_switches_at_the_latest_step_and_says_so():
    step, reason = fires(when_beyond(0.95, latest=55, every=10), measure=lambda multiple: 0.5)
    assert step == 55
    assert reason == "the latest step 55 was reached before the threshold 0.95"


def test_what_a_trigger_has_seen_is_in_its_memory():
    trigger, memory = when_beyond(0.95, latest=90, checks=2, every=10), {}
    assert trigger.decide(Moment(10, 100, lambda m: 0.99), memory) is None
    restored = dict(memory)
    assert trigger.decide(Moment(20, 100, lambda m: 0.99), restored) is not None


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: at_step(0), "step: 0"),
        (lambda: at_fraction(1.0), "fraction: 1.0"),
        (lambda: when_beyond(1.5, latest=9), "threshold: 1.5"),
        (lambda: when_beyond(latest=9, checks=0), "checks: 0"),
        (lambda: when_beyond(latest=9, every=0), "every: 0"),
    ],
)
def test_triggers_that_make_no_sense_are_refused(build, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build()
