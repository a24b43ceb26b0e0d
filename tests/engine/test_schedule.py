"""Learning rates: up to the peak, then a cosine or a constant, anew in every phase."""

from dataclasses import replace
from math import cos, pi

import pytest
import torch

from latebloom import Delay, ModularSum, Phase, RunConfig, Training, at_fraction, at_step, hybrid
from latebloom.engine.backend import Alone
from latebloom.engine.schedule import learning_rate, rate_of_step, unfinished_warmups
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError


def test_warm_up_then_cosine():
    phase = Phase(learning_rate=0.1, warmup=4)
    rates = [learning_rate(phase, step, 24) for step in range(24)]
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[4] == pytest.approx(0.1)
    assert rates[14] == pytest.approx(0.1 * 0.5 * (1 + cos(pi * 0.5)))
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.001


def test_warm_up_then_constant():
    phase = Phase(learning_rate=0.1, warmup=2, schedule="constant")
    assert [learning_rate(phase, step, 6) for step in range(6)] == pytest.approx([0.05, 0.1, 0.1, 0.1, 0.1, 0.1])


def test_cycles_run_through_the_schedule_again_and_the_last_takes_what_is_left():
    phase = Phase(learning_rate=0.1, warmup=4, cycles=3)
    once = [learning_rate(replace(phase, cycles=1), step, 8) for step in range(8)]
    longer = [learning_rate(replace(phase, cycles=1), step, 10) for step in range(10)]
    assert [learning_rate(phase, step, 26) for step in range(26)] == once + once + longer


def test_more_cycles_than_steps_never_stop_the_training():
    rates = [learning_rate(Phase(learning_rate=0.1, warmup=2, cycles=50), step, 10) for step in range(10)]
    assert rates == pytest.approx([0.05] * 10)
    (said,) = unfinished_warmups(Training(steps=10, full=Phase(warmup=2, cycles=50)), None)
    assert "a warm-up of 2 steps in a cycle of 1 ends at 50%" in said


def test_one_schedule_takes_phases_of_one_shape():
    training, delay = Training(restart=False, delayed=Phase(warmup=5), full=Phase(warmup=95)), Delay(until=at_step(9))
    with pytest.raises(
        ConfigError, match=r"training\.restart: .* delayed \(5, 'cosine', 1\) and full \(95, 'cosine', 1\)"
    ):
        RunConfig(task=ModularSum(), model=hybrid(), delay=delay, training=training)
    RunConfig(task=ModularSum(), model=hybrid(), training=training)  # joint training has one schedule anyway


def test_two_cycles_of_joint_training_have_the_rates_of_a_delay_of_half_the_steps():
    phase = Phase(learning_rate=0.1, warmup=4)
    training, delay = Training(steps=40, delayed=phase, full=phase), Delay(until=at_fraction(0.5))
    delayed = [rate_of_step(training, delay, None if step < 20 else 20, step) for step in range(40)]
    joint = replace(training, full=replace(phase, cycles=2))
    assert [rate_of_step(joint, None, None, step) for step in range(40)] == delayed


def test_without_a_restart_a_delay_has_the_rates_of_joint_training():
    phase = Phase(learning_rate=0.1, warmup=4)
    training, delay = Training(steps=40, delayed=phase, full=phase, restart=False), Delay(until=at_step(15))
    delayed = [rate_of_step(training, delay, None if step < 15 else 15, step) for step in range(40)]
    assert delayed == [rate_of_step(training, None, None, step) for step in range(40)]
    halved = replace(training, full=replace(phase, learning_rate=0.05))
    assert [rate_of_step(halved, delay, None if step < 15 else 15, step) for step in range(40)] == [
        rate if step < 15 else rate / 2 for step, rate in enumerate(delayed)
    ]


def rates_of(trainer: Trainer) -> dict[str, float]:
    backend = trainer.backend
    assert isinstance(backend, Alone)
    groups = zip(backend.roles, backend.optimizer.param_groups, strict=True)
    return {role: float(group["lr"]) for role, group in groups}


def test_each_phase_has_its_own_peak_warm_up_batch_size_and_factors(tiny):
    training = replace(tiny.training, recurrence_factor=0.25, attention_factor=2.0)
    trainer = Trainer([replace(tiny, training=training)], torch.device("cpu"))
    rates, sizes = [], []
    for _ in range(24):
        sizes.append(trainer._form().batch_size)
        trainer.advance()
        rates.append(rates_of(trainer))
    assert sizes == [8] * 12 + [16] * 12
    before, after = rates[:12], rates[12:]
    assert [rate["rest"] for rate in before[:4]] == pytest.approx([5e-3 * k / 4 for k in (1, 2, 3, 4)])
    assert all(rate["recurrence"] == rate["rest"] for rate in before)
    assert [rate["rest"] for rate in after[:4]] == pytest.approx([3e-3 * k / 4 for k in (1, 2, 3, 4)])
    assert all(rate["recurrence"] == pytest.approx(0.25 * rate["rest"]) for rate in after)
    assert all(rate["attention"] == pytest.approx(2.0 * rate["rest"]) for rate in after)


def test_joint_training_is_one_phase(tiny):
    trainer = Trainer([replace(tiny, delay=None)], torch.device("cpu"))
    seen = []
    for _ in range(24):
        trainer.advance()
        seen.append(rates_of(trainer)["rest"])
    assert trainer.runs[0].stage(24).phase == "full"
    assert max(seen) == pytest.approx(3e-3)
    assert seen[4:] == sorted(seen[4:], reverse=True)


def test_a_phase_that_ends_within_its_warm_up_is_named_and_no_other():
    short = Phase(warmup=40)
    training = Training(steps=100, delayed=Phase(warmup=200), full=short)
    assert unfinished_warmups(training, None) == []
    assert unfinished_warmups(replace(training, steps=30), None) == [
        "training.full.warmup: a warm-up of 40 steps in a phase of 30 ends at 75% of the learning rate; "
        "set training.full.warmup=3, for example"
    ]
    (sentence,) = unfinished_warmups(training, Delay(until=at_fraction(0.5)))
    assert sentence.startswith("training.delayed.warmup: a warm-up of 200 steps in a phase of 50 ends at 25%")
    late = unfinished_warmups(training, Delay(until=at_step(60)))
    assert [sentence.split(":")[0] for sentence in late] == ["training.delayed.warmup", "training.full.warmup"]
    once = Training(steps=300, delayed=Phase(warmup=200), full=Phase(warmup=200), restart=False)
    assert unfinished_warmups(once, Delay(until=at_step(60))) == []
    (whole,) = unfinished_warmups(replace(once, steps=100), Delay(until=at_step(60)))
    assert "in a schedule of 100 ends at 50%" in whole
    assert whole.endswith("set training.delayed.warmup=10 and training.full.warmup=10, for example")
    (cycle,) = unfinished_warmups(replace(training, full=replace(short, cycles=4)), None)
    assert "a warm-up of 40 steps in a cycle of 25 ends at 62%" in cycle
    unwarmed = replace(training, delayed=Phase(warmup=0), full=Phase(warmup=0))
    assert unfinished_warmups(unwarmed, Delay(until=at_step(99))) == []
