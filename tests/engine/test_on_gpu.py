"""What is promised of a GPU; run where there is one (`pytest -m gpu`)."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from latebloom import Delay, Evaluating, Phase, RunConfig, Training, at_step, hybrid, run, when_beyond
from latebloom.engine import loop
from latebloom.engine.capture import Captured
from latebloom.engine.loop import run_stacked
from latebloom.engine.outcome import TrainedRun
from latebloom.engine.stacked import Stacked
from latebloom.engine.trainer import Trainer
from latebloom.layers.precision import precision
from latebloom.studies.local import train_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU"),
]
GPU = torch.device("cuda")


@pytest.fixture
def paper() -> RunConfig:
    phase = Phase(batch_size=64, warmup=20)
    delay = Delay(until=at_step(40), withhold=("recall",))
    return RunConfig(model=hybrid(width=64), delay=delay, training=Training(steps=100, full=phase, delayed=phase))


def different_runs(paper: RunConfig) -> list[RunConfig]:
    slow = replace(paper.training, full=replace(paper.training.full, learning_rate=1e-3))
    return [
        replace(paper, seed=1),
        replace(paper, seed=2, delay=None),
        replace(paper, seed=3, delay=None, training=slow),
        replace(paper, seed=4, delay=Delay(until=at_step(60), hold="ramp", ramp_steps=20)),
        replace(paper, seed=5, delay=Delay(until=when_beyond(0.3, latest=70, every=10))),
        replace(disturbed(paper), seed=6),
        replace(paper, seed=8, delay=Delay(until=at_step(40), hold="none", withhold=("recall",))),
        replace(paper, seed=7, training=replace(paper.training, weigh="positions", restart=False)),
    ]


def flat(trainer: Trainer) -> torch.Tensor:
    """Return all parameters of a trainer as one tensor."""
    backend = trainer.backend
    if isinstance(backend, Stacked):
        return backend.flat
    return torch.cat([parameter.flatten() for parameter in backend.template.parameters()])


def disturbed(paper: RunConfig) -> RunConfig:
    return replace(paper, training=replace(paper.training, state_noise=0.2))


def test_a_stacked_seed_follows_its_standalone_run_in_float32(paper):
    configs = different_runs(paper)
    with precision("float32"):
        stack, alone = Trainer(configs, GPU), [Trainer([config], GPU, stacked=False) for config in configs]
        for _ in range(99):
            assert stack.advance() == [i for i, trainer in enumerate(alone) if trainer.advance()]
        stack.read_means()
        for trainer in alone:
            trainer.read_means()
            trainer.advance()
        stack.advance()
        for i, means in stack.read_means().items():
            assert means["loss"] == pytest.approx(alone[i].read_means()[0]["loss"], rel=1e-4)


@pytest.mark.parametrize("mode", ["tf32", "float32", "bf16"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_run_repeats_itself_bit_for_bit_captured_or_not(paper, mode, noise):
    alone = replace(paper, training=replace(paper.training, state_noise=noise))
    with precision(mode):
        trainers = [Trainer([alone], GPU, capture=capture) for capture in (True, True, False)]
        stacks = [Trainer(different_runs(paper), GPU, capture=capture) for capture in (True, True, False)]
        for one in (*trainers, *stacks):
            for _ in range(100):
                one.advance()
        first, *others = [flat(trainer) for trainer in trainers]
        assert all(torch.equal(first, other) for other in others)
        assert all(torch.equal(flat(stacks[0]), flat(stack)) for stack in stacks[1:])


@pytest.mark.parametrize("length", [80, 300])  # up to what the kernel for attention takes, and beyond
def test_runs_of_long_sequences_repeat_themselves_too(paper, length):
    """Every digit is there many hundred times in a batch, and a token is asked by many others: all that is added up is
    added up in a fixed order."""
    training = replace(paper.training, length=length, steps=40)
    config = replace(paper, training=training, delay=None, evaluation=Evaluating(multiples=(1,)))
    trainers = [Trainer([config], GPU) for _ in range(3)]
    stacks = [Trainer([replace(config, seed=seed) for seed in (1, 2)], GPU) for _ in range(3)]
    for one in (*trainers, *stacks):
        for _ in range(40):
            one.advance()
    for first, *others in ([flat(trainer) for trainer in trainers], [flat(stack) for stack in stacks]):
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("mode", ["tf32", "float32", "bf16"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_no_two_gradients_share_memory(paper, mode, noise):
    """They are clipped in place, all of them at once: what two of them share would be scaled twice, or not."""
    config = replace(paper, delay=None, training=replace(paper.training, state_noise=noise))
    with precision(mode):
        trainer = Trainer([config], GPU, stacked=False, capture=False)
        trainer.advance()
        gradients = [p.grad for p in trainer.backend.template.parameters() if p.grad is not None]
    spans = sorted((g.data_ptr(), g.data_ptr() + 4 * g.numel()) for g in gradients)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("width", [64, 128])
def test_the_model_of_a_run_is_where_it_was_trained(paper, width):
    """Whether it was trained as a stack of one or not."""
    training = replace(paper.training, steps=3, full=Phase(batch_size=4, warmup=1))
    short = replace(paper, model=replace(paper.model, width=width), delay=None, training=training)
    trained = run(replace(short, evaluation=Evaluating(multiples=(1,), sequences=8)), device="cuda")
    assert {parameter.device.type for parameter in trained.model.parameters()} == {"cuda"}


def test_most_steps_are_replayed(paper):
    trainer = Trainer([paper], GPU)
    for _ in range(100):
        trainer.advance()
    assert trainer.captured.reason is None
    assert len(trainer.captured._graphs) > 10


def test_a_step_that_cannot_be_captured_goes_on_eagerly_and_says_why():
    captured = Captured(GPU)
    count = torch.zeros((), device=GPU)

    def step():
        count.add_(1)
        float(count)  # waits for the device, which a captured step must not

    captured.run("step", step)
    with pytest.warns(UserWarning, match="steps are not captured, which is slower"):
        captured.run("step", step)
    captured.run("step", step)
    assert float(count) == 3
    assert captured.reason is not None
    assert "captur" in captured.reason
    assert torch.randn(3, device=GPU).isfinite().all()  # random numbers can be drawn as before


@pytest.mark.parametrize("stacked", [False, True])
def test_an_interrupted_run_goes_on_bit_for_bit(paper, tmp_path, monkeypatch, stacked):
    from latebloom.errors import InterruptedRun

    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    paper = replace(paper, training=replace(paper.training, checkpoint_every=10, log_every=10))
    configs = {"quiet": replace(paper, seed=0), "disturbed": replace(disturbed(paper), seed=1)}

    def go(folder, stop_at=10**9):
        def observe(*words):
            if words[-1].step >= stop_at:
                raise InterruptedRun("stopped by the test")

        if stacked:
            run_stacked(configs, folder, GPU, observe=observe)
        else:
            for name, config in configs.items():
                run(config, folder / name, device="cuda", observe=observe)

    go(tmp_path / "whole")
    for moment in (25, 65):
        with pytest.raises(InterruptedRun):
            go(tmp_path / "parts", moment)
    go(tmp_path / "parts")
    for name in configs:
        for file in ("model/model.safetensors", "metrics.jsonl"):
            whole, parts = ((tmp_path / folder / name / file).read_bytes() for folder in ("whole", "parts"))
            assert whole == parts, (name, file)


def test_many_runs_of_two_shapes_are_trained_and_reported(paper, tmp_path):
    configs = {f"seed-{seed}": replace(paper, seed=seed) for seed in range(3)}
    configs["wide"] = replace(paper, model=hybrid(width=128))
    assert train_all(configs, tmp_path, device="cuda") == {}
    trained = {name: TrainedRun.load(tmp_path / name) for name in configs}
    assert [run.result["stacked"] for run in trained.values()] == [3, 3, 3, 1]
    assert json.loads((tmp_path / "wide" / "result.json").read_text())["switch_step"] == 40
