"""Learning rates: up to the peak, then a cosine or a constant, anew in every phase."""

from dataclasses import replace
from math import cos, pi

import pytest
import torch

from latebloom import Delay, Phase, Training, at_fraction, at_step
from latebloom.training.schedule import learning_rate, unfinished_warmups
from latebloom.training.trainer import Trainer


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


def rates_of(trainer: Trainer) -> dict[str, float]:
    return {group["role"]: float(group["lr"]) for group in trainer.optimizer.param_groups}


def test_each_phase_has_its_own_peak_warm_up_batch_size_and_factors(tiny):
    training = replace(tiny.training, recurrence_factor=0.25, attention_factor=2.0)
    trainer = Trainer(replace(tiny, training=training), torch.device("cpu"))
    rates, sizes = [], []
    for _ in range(24):
        sizes.append(trainer.phase.batch_size)
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
    trainer = Trainer(replace(tiny, delay=None), torch.device("cpu"))
    seen = []
    for _ in range(24):
        trainer.advance()
        seen.append(rates_of(trainer)["rest"])
    assert trainer.phase_name == "full"
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
    unwarmed = replace(training, delayed=Phase(warmup=0), full=Phase(warmup=0))
    assert unfinished_warmups(unwarmed, Delay(until=at_step(99))) == []
