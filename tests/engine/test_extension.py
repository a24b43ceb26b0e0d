"""A run can be extended where the steps that it has done are those of the longer run."""

import json
from dataclasses import replace

import pytest
import torch

from latebloom import Delay, Phase, RunConfig, TrainedRun, at_fraction, at_step, run
from latebloom.engine.extension import extension_obstacle, is_extension
from latebloom.engine.loop import run_stacked
from latebloom.errors import CheckpointError
from latebloom.integrations.load_model import load_model


def with_training(config: RunConfig, **changes) -> RunConfig:
    return replace(config, training=replace(config.training, **changes))


@pytest.fixture
def constant(tiny) -> RunConfig:
    phase = Phase(learning_rate=3e-3, warmup=4, schedule="constant", batch_size=8)
    return with_training(tiny, delayed=phase, full=phase, steps=24)


@pytest.mark.parametrize("delay", [None, Delay(until=at_step(12)), Delay(until=at_step(20), hold="ramp", ramp_steps=4)])
def test_an_extended_run_is_bit_for_bit_the_run_with_these_steps_from_the_start(constant, tmp_path, delay):
    short = replace(constant, delay=delay)
    longer = with_training(short, steps=48)
    run(short, tmp_path / "extended")
    extended = run(longer, tmp_path / "extended")
    whole = run(longer, tmp_path / "whole")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, extended.model.state_dict()[name]), name
    assert extended.evaluation == whole.evaluation
    assert extended.result | {"seconds": 0} == whole.result | {"seconds": 0}
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "extended")]
    assert lines[0] == lines[1]
    environment = json.loads((tmp_path / "extended" / "environment.json").read_text())
    assert environment["extended"] == [{"hashes": list(short.hashes), "steps": 24}]
    again = TrainedRun.load(tmp_path / "extended")
    assert again.config == longer
    assert run(with_training(short, steps=50), tmp_path / "extended").result["steps"] == 50


def test_the_model_of_an_extended_run_that_was_killed_can_be_inspected(constant, tmp_path):
    run(constant, tmp_path)

    def die(progress):
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        run(with_training(constant, steps=48), tmp_path, observe=die)
    _, weights = load_model(tmp_path / "checkpoints")
    assert weights.endswith("of step 24 of 48")


def test_a_run_of_a_study_is_not_extended_alone(constant, tmp_path):
    """Afterwards the study could not continue, because its runs would have different settings."""
    run(constant, tmp_path / "arm" / "seed-0")
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is one of the runs in .* so it cannot be extended alone"):
        run(with_training(constant, steps=48), tmp_path / "arm" / "seed-0")


def test_other_lengths_are_tested_without_training_again(constant, tmp_path):
    first = run(constant, tmp_path)
    more = replace(constant, evaluation=replace(constant.evaluation, multiples=(1, 2)))
    second = run(more, tmp_path)
    assert second.evaluation.lengths == [5, 10]
    assert all(second.evaluation.accuracy(n) == first.evaluation.accuracy(n) for n in (5, 10))


def test_a_schedule_that_depends_on_the_steps_cannot_be_extended(tiny, tmp_path):
    run(tiny, tmp_path)
    with pytest.raises(CheckpointError, match="the learning rate schedule differs from step 17 on") as caught:
        run(with_training(tiny, steps=48), tmp_path)
    assert "\n" not in str(caught.value)
    assert "the rates of a cosine schedule depend on the number of steps" in str(caught.value)
    assert "a run with training.full.schedule=constant can be extended" in str(caught.value)
    assert TrainedRun.load(tmp_path).config == tiny  # nothing was touched


def test_a_switch_that_would_have_been_at_another_step_cannot_be_extended(constant, tmp_path):
    early = replace(constant, delay=Delay(until=at_fraction(0.5)))
    run(early, tmp_path)
    with pytest.raises(CheckpointError, match="the switch is at another step"):
        run(with_training(early, steps=48), tmp_path)


def test_fewer_steps_than_are_done_and_other_settings_are_refused(constant, tmp_path):
    run(constant, tmp_path)
    with pytest.raises(CheckpointError, match="24 steps are done already, more than 20"):
        run(with_training(constant, steps=20), tmp_path)
    with pytest.raises(CheckpointError, match=r"settings \(training.steps: 24 -> 48, training.clip: 1.0 -> 2.0\)"):
        run(with_training(constant, steps=48, clip=2.0), tmp_path)


def test_a_run_of_a_stack_has_no_checkpoint_to_extend(constant, tmp_path):
    run_stacked({"a": constant, "b": replace(constant, seed=1)}, tmp_path, torch.device("cpu"))
    with pytest.raises(CheckpointError, match="was trained in a stack and has no checkpoint of its own"):
        run(with_training(constant, steps=48), tmp_path / "a")


def test_an_unfinished_delay_may_become_longer_before_its_switch(constant):
    late = replace(constant, delay=Delay(until=at_fraction(0.5)))
    longer = with_training(late, steps=48)
    assert is_extension(late, longer)
    assert extension_obstacle(late, longer, done=10, switch_step=None) == ""
    assert "another step" in extension_obstacle(late, longer, done=14, switch_step=12)
    assert "another step" in extension_obstacle(longer, late, done=14, switch_step=None)  # shorter: it switches at 12
    assert not is_extension(late, replace(late, seed=1))
