"""Interference: right by finite differences and by planted gradients, and it changes nothing of the run."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from planted import Spoiled
from torch import nn

from latebloom import Composite, Phase, RunConfig, SequenceModel, Training, hybrid, lstm, run
from latebloom.engine.interference import NUMBERS, Gradients, Interference, beyond_training, compare
from latebloom.engine.loop import run_stacked
from latebloom.engine.loss import answer_losses
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.probes.interference import GradientInterference, conflicts, gradients
from latebloom.probes.stack import Stack
from latebloom.probes.subject import Subject
from latebloom.tasks.task import Batch

CPU = torch.device("cpu")


def gradients_of(subject: Subject, batch: Batch) -> Gradients:
    tensors = {name: getattr(batch, name)[None] for name in ("tokens", "positions", "targets")}
    return gradients(Stack([subject]), replace(batch, **tensors))


def named_rows(found: dict) -> dict[tuple[str, str], dict[str, float]]:
    return {(row[0], row[1]): dict(zip(NUMBERS, row[2:], strict=True)) for row in found["rows"]}


def test_gradients_agree_with_finite_differences(tiny):
    torch.manual_seed(0)
    model: Any = SequenceModel(tiny.model, tiny.task.vocabulary_size).double()
    batch = tiny.task.batch(0, "test", 0, length=5, size=16).without(["recall"])
    found = gradients_of(Subject(model, tiny.task, 5), batch)["all"][0]
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    parts = [part for layer in (0, 1) for part in model.blocks[layer][0].parameters()]  # norm and cell of each part

    def loss_at(step: float) -> float:
        with torch.no_grad():
            at = 0
            for part in parts:
                part += step * direction[at : at + part.numel()].view_as(part)
                at += part.numel()
            value = answer_losses(model, batch)["sum"].item()
            at = 0
            for part in parts:
                part -= step * direction[at : at + part.numel()].view_as(part)
                at += part.numel()
        return value

    slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    assert (found @ direction).item() == pytest.approx(slope, rel=1e-6)


def test_a_step_along_a_gradient_changes_the_loss_beyond_as_its_cosine_says(tiny):
    """A cosine with the held-out gradient is the fall of the held-out loss after a small step, divided by norms."""
    torch.manual_seed(0)
    model: Any = SequenceModel(tiny.model, tiny.task.vocabulary_size).double()
    subject = Subject(model, tiny.task, 5)
    (total,) = GradientInterference(sequences=16).measure(subject).records(layer="all", part="total")
    short = tiny.task.batch(0, "test", 0, length=5, size=16)
    long = beyond_training(tiny.task, tiny.task.batch(0, "validation", 0, length=10, size=16), 5)
    assert long.columns == {"sum": slice(0, 3)}  # 5 digits and SUM at 10, of which training has 3 and SUM
    step, parts = gradients_of(subject, short)["all"][0], [p for i in (0, 1) for p in model.blocks[i][0].parameters()]
    before = answer_losses(model, long)["sum"].item()
    size, at = 1e-6 / step.norm(), 0
    with torch.no_grad():
        for part in parts:
            part -= size * step[at : at + part.numel()].view_as(part)
            at += part.numel()
    fall = (before - answer_losses(model, long)["sum"].item()) / 1e-6
    held_out_norm = gradients_of(subject, long)["all"].norm().item()
    assert total["held_out_with"] == pytest.approx(fall / held_out_norm, abs=1e-4)


def test_the_engine_measures_what_the_probe_of_a_model_measures(tiny):
    """Two implementations on the same batches: through the backend while training, and through a plain module."""
    trainer = Trainer([replace(tiny, delay=None)], CPU)
    for _ in range(3):
        trainer.advance()
    found = named_rows(trainer.interference()[0])
    model, task = trainer.backend.model(0), tiny.task
    batch = task.batch(tiny.seed, "train", 3, length=5, size=16)
    subject = Subject(model, task, 5)
    by_answer = {a: gradients_of(subject, batch.without(set(task.answers) - {a}))["all"] for a in task.answers}
    assert found["all", "sum"]["norm_with"] == pytest.approx(by_answer["sum"].norm().item(), rel=1e-4)
    total = by_answer["sum"] + by_answer["recall"]
    assert found["all", "total"]["norm_with"] == pytest.approx(total.norm().item(), rel=1e-4)
    between = torch.cosine_similarity(by_answer["sum"], by_answer["recall"]).item()
    assert found["all", "sum"]["between"] == pytest.approx(between, abs=1e-4)


class Plain(nn.Module):
    def fork(self, x):
        return x, x


class Spoiler(nn.Module):
    def forward(self, x):
        return Spoiled.apply(x)


def test_a_recurrence_whose_gradient_attention_spoils_is_found_and_its_opposite_too(tiny):
    """Attention that is zero and turns the gradient around gives the opposite gradient; zero alone gives the same."""
    config = replace(tiny, model=hybrid(width=8, blocks=1, heads=2, zero_output=True), delay=None)
    honest = Trainer([config], CPU)
    for numbers in named_rows(honest.interference()[0]).values():
        assert numbers["cosine"] == pytest.approx(1.0)
        assert numbers["opposite"] == 0.0
        assert numbers["alone_with"] == pytest.approx(numbers["alone_without"])
    spoiled = Trainer([config], CPU)
    template: Any = spoiled.backend.template
    part = template.blocks[0][1]
    part.norm, part.body = Plain(), Spoiler()
    for numbers in named_rows(spoiled.interference()[0]).values():
        assert numbers["cosine"] == pytest.approx(-1.0)
        assert numbers["opposite"] > 0.99
        assert numbers["norm_with"] == pytest.approx(numbers["norm_without"])
        assert numbers["alone_with"] == pytest.approx(-numbers["alone_without"])


def test_the_comparison_of_known_gradients():
    a, b = torch.tensor([[3.0, 4.0, 0.0]]), torch.tensor([[4.0, -3.0, 0.0]])
    names, numbers = compare(
        {"x": {"all": a}, "y": {"all": b}, "total": {"all": a + b}},
        {"x": {"all": 2 * a}, "y": {"all": -b}, "total": {"all": 2 * a - b}},
        [],
    )
    found = dict(zip(names, numbers[0].tolist(), strict=True))
    assert found["all", "x"][:5] == pytest.approx([1.0, 5.0, 10.0, 0.0, 0.0])
    assert found["all", "y"][:5] == pytest.approx([-1.0, 5.0, 5.0, 2 / 3, 0.0])
    assert found["all", "x"][5] != found["all", "x"][5]  # nothing is held out


def small(**training) -> RunConfig:
    phase = Phase(learning_rate=5e-3, warmup=4, batch_size=8)
    return RunConfig(
        task=Composite(modulus=3, keys=16, values=4),
        model=hybrid(width=8, blocks=2, heads=2, positions="randomised"),
        training=Training(length=5, steps=14, delayed=phase, full=phase, log_every=3, check_every=7, **training),
        evaluation=replace(RunConfig().evaluation, multiples=(1, 2), sequences=16),
    )


def same_but_for_interference(plain, probed) -> bool:
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (plain, probed)
    ]
    kept = [line for line in lines[1] if "interference" not in line]
    assert len(lines[1]) > len(kept)
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (plain, probed)]
    return lines[0] == kept and weights[0] == weights[1]


def check_nothing_changes(tmp_path, device: str) -> None:
    """Random positions and windows draw numbers too; every weight and every metric is the same to the last bit."""
    from latebloom import Delay, at_step

    for delay in (None, Delay(until=at_step(7), withhold=("recall",))):
        for every in (0, 2):
            config = replace(small(probe_every=every), delay=delay)
            where = tmp_path / f"{'joint' if delay is None else 'dat'}-{every}"
            run(config, where / "alone", device=device)
            seeds = {f"seed-{seed}": replace(config, seed=seed) for seed in (1, 2)}
            if delay is None:  # a mixed stack: joint and delayed runs
                seeds["dat"] = replace(config, seed=3, delay=Delay(until=at_step(7)))
            run_stacked(seeds, where / "stack", torch.device(device))
        for name in ("alone", "stack/seed-1", "stack/seed-2", *(["stack/dat"] if delay is None else [])):
            stem = "joint" if delay is None else "dat"
            assert same_but_for_interference(tmp_path / f"{stem}-0" / name, tmp_path / f"{stem}-2" / name), name


def test_measuring_changes_no_bit_of_a_run_alone_or_in_a_stack(tmp_path):
    check_nothing_changes(tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_measuring_changes_no_bit_of_a_run_on_a_gpu(tmp_path):
    check_nothing_changes(tmp_path, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_passes_side_by_side_measure_what_they_measure_one_after_the_other(monkeypatch):
    trainer = Trainer([replace(small(), seed=seed) for seed in (1, 2)], torch.device("cuda"))
    trainer.advance()
    direct, captured, replayed = (trainer.interference() for _ in range(3))
    assert direct == captured == replayed
    one_by_one = "latebloom.engine.interference.side_by_side"
    monkeypatch.setattr(one_by_one, lambda device, works: [work() for work in works])
    other = Trainer([replace(small(), seed=seed) for seed in (1, 2)], torch.device("cuda"))
    other.advance()
    for found, expected in zip(other.interference(), direct, strict=True):
        for key, numbers in named_rows(found).items():
            assert numbers == pytest.approx(named_rows(expected)[key], rel=1e-3, abs=1e-3), key


def test_stacked_runs_measure_what_they_measure_alone():
    configs = [replace(small(), seed=seed) for seed in (1, 2)]
    stack, alone = Trainer(configs, CPU), [Trainer([config], CPU) for config in configs]
    for trainer in (stack, *alone):
        trainer.advance()
    for found, trainer in zip(stack.interference(), alone, strict=True):
        expected = named_rows(trainer.interference()[0])
        for key, numbers in named_rows(found).items():
            for name, value in numbers.items():
                assert (value is None) == (expected[key][name] is None)
                assert value is None or value == pytest.approx(expected[key][name], rel=2e-3, abs=2e-3), (key, name)


def test_a_run_records_it_and_the_probe_reads_it(tmp_path):
    config = small(probe_every=5)
    run(config, tmp_path / "run", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    subject = Subject(SequenceModel(config.model, config.task.vocabulary_size), config.task, 5, recorded=lines)
    table = GradientInterference().measure(subject)
    assert sorted(set(table.values("step"))) == [5, 10]
    assert set(table.values("part")) == {"sum", "recall", "total"}
    assert set(table.values("layer")) == {"all", "0", "1"}
    assert conflicts(table, "cosine") in (0.0, 0.5, 1.0)


def test_it_takes_a_recurrence_and_attention():
    with pytest.raises(ConfigError, match=r"training\.probe_every: a model of layout 'rm' has no attention, so"):
        replace(small(probe_every=5), model=lstm(width=8))


def test_it_is_left_out_where_the_task_has_no_longer_sequence():
    config = replace(
        small(), task=Composite(modulus=3, keys=2, values=4), evaluation=replace(small().evaluation, multiples=(1,))
    )
    trainer = Trainer([config], CPU)
    numbers = named_rows(trainer.interference()[0])["all", "total"]
    assert numbers["alone_with"] is None
    assert numbers["cosine"] is not None
    assert isinstance(trainer._interference, Interference)


def test_parts_have_the_weight_that_they_have_in_the_loss(tiny):
    """With a loss per token, the sum is supervised at 3 digits and SUM, and recall once."""
    plain, weighed = (
        Trainer([replace(tiny, delay=None, training=replace(tiny.training, weigh=weigh))], CPU)
        for weigh in ("answers", "positions")
    )
    one, other = (named_rows(trainer.interference()[0]) for trainer in (plain, weighed))
    assert other["all", "sum"]["norm_with"] == pytest.approx(one["all", "sum"]["norm_with"] * 4 / 5, rel=1e-5)
    assert other["all", "recall"]["norm_with"] == pytest.approx(one["all", "recall"]["norm_with"] / 5, rel=1e-5)
    assert other["all", "sum"]["between"] == pytest.approx(one["all", "sum"]["between"], abs=1e-5)


class Killed(BaseException):
    pass


def test_a_run_that_is_killed_and_resumed_records_the_same(tmp_path, monkeypatch):
    config = small(probe_every=2, checkpoint_every=5)
    run(config, tmp_path / "whole", device="cpu")
    measure = Interference.measure

    def kill_after_the_eighth_step(self, gates):
        found = measure(self, gates)
        if int(self.index) == 8:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Interference, "measure", kill_after_the_eighth_step)
        with pytest.raises(Killed):
            run(config, tmp_path / "cut", device="cpu")
    run(config, tmp_path / "cut", device="cpu")
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
