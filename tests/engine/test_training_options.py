"""Options of training: what each changes, in single runs, in stacks and after a resume, and where it is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from latebloom import Composite, ModularSum, RunConfig, SequenceModel, at_step, hybrid, lstm, run, transformer
from latebloom.cli import main
from latebloom.components import origin_of
from latebloom.config import with_overrides
from latebloom.engine.backend import project
from latebloom.engine.draws import drop_path
from latebloom.engine.extension import extension_obstacle
from latebloom.engine.memory import largest_step
from latebloom.engine.options import Curriculum, DropPath, SlowAttention
from latebloom.engine.stacks import stack_key
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.models.block import residual_parts
from latebloom.models.settings import Recurrence
from latebloom.tasks import CoupledValue, ParityRecall, Recall, Task

CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "slow attention": {"slow_attention": SlowAttention(factor=0.3, warmup=5)},
    "drop-path": {"drop_path": DropPath(probability=0.9, falling=0.8)},
    "detached": {"detach_attention": True},
    "projected": {"project_gradients": True},
    "bypass loss": {"bypass_loss": 0.5},
    "curriculum": {"curriculum": Curriculum(start=3)},
    "state passing": {"state_passing": 0.7},
    "all at once": {
        "drop_path": DropPath(), "bypass_loss": 1.0, "project_gradients": True, "state_passing": 1.0,
        "slow_attention": SlowAttention(factor=0.1), "state_noise": 0.1,
    },
}  # fmt: skip


@pytest.fixture
def small(tiny) -> RunConfig:
    """A delayed run whose phases have one batch size, so that runs with any delay can be stacked."""
    return replace(tiny, training=replace(tiny.training, full=replace(tiny.training.full, batch_size=8)))


def with_options(config: RunConfig, **options: Any) -> RunConfig:
    return replace(config, training=replace(config.training, **options))


def trained(*configs: RunConfig, steps: int = 16, stacked: bool | None = None) -> Trainer:
    trainer = Trainer(configs, CPU, stacked=stacked)
    for _ in range(steps):
        trainer.advance()
    return trainer


def weights(trainer: Trainer, index: int = 0, role: str = "") -> Tensor:
    model = trainer.backend.model(index)
    parts: list[Any] = residual_parts(model, role) if role else [model]
    return torch.cat([p.detach().flatten() for part in parts for p in part.parameters()])


def logits(trainer: Trainer) -> Tensor:
    task = trainer.shared.task
    with torch.no_grad():
        return trainer.backend.model(0)(task.batch(0, "test", 0, length=5, size=16).tokens)


@pytest.mark.parametrize("delay", ["joint", "delayed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_changes_training_alike_in_single_runs_and_in_stacks(small, option, delay):
    config = with_options(small if delay == "delayed" else replace(small, delay=None), **OPTIONS[option])
    others = replace(config, seed=1), replace(config, seed=2, delay=None)
    alone, together = trained(config), trained(config, *others)
    plain = trained(replace(config, training=small.training))
    # Logits and not weights, because Adam enlarges the rounding of gradients that are zero, such as that of a key bias.
    torch.testing.assert_close(logits(together), logits(alone), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(logits(alone), logits(plain), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_resumed_run_is_the_same_bit_for_bit(small, option):
    config = with_options(small, **OPTIONS[option])
    for configs in ([config], [config, replace(config, seed=1, delay=None)]):
        whole, first, second = trained(*configs), trained(*configs, steps=9), Trainer(configs, CPU)
        tensors = {
            file: {name: value.clone() for name, value in group.items()} for file, group in first.tensors().items()
        }
        second.load(tensors, first.state())
        for _ in range(7):
            second.advance()
        assert torch.equal(weights(second), weights(whole))


def test_no_option_changes_the_hash_of_a_run_that_does_not_have_it(tiny):
    off = dict.fromkeys(("slow_attention", "drop_path", "curriculum"))
    off |= {"detach_attention": False, "project_gradients": False, "bypass_loss": 0, "state_passing": 0}
    assert with_options(tiny, **off).hash == tiny.hash
    hashes = {with_options(tiny, **option).hash for name, option in OPTIONS.items() if "passing" not in str(option)}
    assert len(hashes | {tiny.hash}) == len(OPTIONS) - 1


def test_options_are_set_by_overrides_and_taken_back_by_none(tiny):
    changed = with_overrides(tiny, ["training.drop_path.probability=0.9", "training.drop_path.falling=0.8"])
    assert changed.training.drop_path == DropPath(probability=0.9, falling=0.8)
    assert with_overrides(changed, ["training.drop_path=none"]) == tiny
    assert with_overrides(tiny, ["model.attention.gate_bias=-4"]).model.attention.gate_bias == -4


def test_slow_attention_scales_its_learning_rate_from_its_first_step(small):
    slow = SlowAttention(factor=0.2, warmup=4)
    assert [slow.at(step) for step in (0, 1, 3, 4, 99)] == pytest.approx([0.05, 0.1, 0.2, 0.2, 0.2])
    for delay in (None, small.delay):  # with a delay, the warm-up begins at the switch
        trainer = trained(with_options(replace(small, delay=delay), slow_attention=slow), steps=13 if delay else 1)
        roles = trainer.backend.roles
        rates = dict(zip(roles, trainer._controls[0, : len(roles)].tolist(), strict=True))
        assert rates["attention"] == pytest.approx(0.05 * rates["rest"])


def test_a_stretched_warm_up_leaves_the_rest_of_the_model_alone(small):
    joint = replace(small, delay=None)
    plain = weights(trained(joint, steps=1), role="recurrence")
    slow = trained(with_options(joint, slow_attention=SlowAttention(factor=1e-6)), steps=1)
    assert torch.equal(weights(slow, role="recurrence"), plain)
    torch.testing.assert_close(weights(slow, role="attention"), weights(trained(joint, steps=0), role="attention"))


def test_drop_path_skips_attention_of_a_sequence_and_block_exactly():
    torch.manual_seed(0)
    model = SequenceModel(hybrid(width=8, blocks=3, heads=2), 20)
    parts, tokens = residual_parts(model, "attention"), torch.randint(20, (6, 9))
    whole = model(tokens)
    for part in parts:
        part.gate = 0.0
    without = model(tokens)
    for part in parts:
        part.gate = 1.0
    for probability, expected in ((0.0, whole), (1.0, without)):
        with drop_path(parts, torch.tensor(probability), 3, torch.tensor(7), 6):
            assert torch.equal(model(tokens), expected)
    with drop_path(parts, torch.tensor(0.5), 3, torch.tensor(7), 4000):
        kept = torch.stack([part.kept for part in parts if part.kept is not None])
    assert kept.shape == (3, 4000)
    assert kept.mean(dim=1).tolist() == pytest.approx([0.5] * 3, abs=0.03)
    assert torch.corrcoef(kept).fill_diagonal_(0).abs().max() < 0.05  # each block draws for itself
    assert all(part.kept is None for part in parts)


def test_drop_path_is_constant_or_falls_to_zero():
    assert {DropPath(probability=0.5).at(step, 100) for step in range(100)} == {0.5}
    falling = [DropPath(probability=0.9, falling=0.5).at(step, 100) for step in range(100)]
    assert falling[:50] == pytest.approx([0.9 * (1 - step / 50) for step in range(50)])
    assert set(falling[50:]) == {0.0}


@pytest.mark.parametrize("layout", ["ram", "(ra)m"])
def test_detached_attention_computes_the_same_and_trains_nothing_below_it(layout):
    torch.manual_seed(0)
    model = SequenceModel(replace(hybrid(width=8, blocks=1, heads=2), layout=layout), 20)
    tokens, (part,) = torch.randint(20, (3, 5)), residual_parts(model, "attention")
    whole, found = model(tokens), {}
    for detached in (False, True):
        part.detached = detached
        below = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
        normed = below if layout == "(ra)m" else None
        branch = part(below, normed) - below  # what attention adds to the stream
        branch.square().sum().backward()
        assert below.grad is not None
        found[detached] = below.grad.abs().max()
        assert torch.equal(model(tokens), whole)
        assert all(parameter.grad is not None for parameter in part.parameters())
    assert found[False] > 0
    assert found[True] == 0


def test_projection_removes_what_opposes_the_guide_and_nothing_else():
    torch.manual_seed(0)
    guides = torch.randn(3, 50)
    gradients = torch.stack([-2 * guides[0], guides[1] + torch.randn(50), torch.randn(50) - 0.5 * guides[2]])
    found = project(gradients, guides) - guides
    torch.testing.assert_close(found[0], torch.zeros(50), atol=1e-5, rtol=0)
    assert (gradients[1] * guides[1]).sum() > 0
    torch.testing.assert_close(found[1], gradients[1])
    assert (gradients[2] * guides[2]).sum() < 0
    assert (found[2] * guides[2]).sum().abs() < 1e-3
    torch.testing.assert_close(found[2] + (gradients[2] - found[2]), gradients[2])


def test_a_projected_step_is_an_ordinary_one_where_nothing_opposes(small, monkeypatch):
    joint = replace(small, delay=None)
    plain = trained(joint, steps=3)
    monkeypatch.setattr("latebloom.engine.backend.project", lambda gradients, guides: gradients + guides)
    projected = trained(with_options(joint, project_gradients=True), steps=3)
    torch.testing.assert_close(logits(projected), logits(plain), rtol=1e-3, atol=1e-4)
    assert projected.read_means()[0]["loss"] == pytest.approx(plain.read_means()[0]["loss"], rel=1e-5)


def test_the_bypass_loss_is_that_of_the_state_answer_without_attention(small):
    joint = replace(small, delay=None)
    attention = replace(joint.model.attention, zero_output=True)
    bare = Trainer([replace(joint, model=replace(joint.model, attention=attention))], CPU)
    with_bypass = Trainer([with_options(bare.shared, bypass_loss=2.0)], CPU)
    for trainer in (bare, with_bypass):
        trainer.advance()
    plain, more = bare.read_means()[0], with_bypass.read_means()[0]
    # Attention's output is zero at the first step, so the state answer has the same loss without it.
    assert more["loss"] == pytest.approx(plain["loss"] + 2 * plain["loss_sum"], rel=1e-5)


def test_the_bypass_loss_waits_for_attention(small):
    delayed = trained(with_options(small, bypass_loss=2.0), steps=12)
    assert torch.equal(weights(delayed), weights(trained(small, steps=12)))
    other = with_options(replace(small, delay=None), bypass_loss=0.5)
    mixed = trained(with_options(small, bypass_loss=2.0), other, steps=12)
    torch.testing.assert_close(logits(mixed), logits(delayed), rtol=1e-3, atol=1e-4)


def test_a_curriculum_raises_the_longest_length(small):
    task = replace(small.task, keys=64)
    config = with_options(replace(small, task=task), length=20, steps=200, curriculum=Curriculum(start=4, rising=0.5))
    longest = [Curriculum(start=4, rising=0.5).at(step, 200, 20) for step in range(200)]
    assert longest[0] == 4
    assert longest == sorted(longest)
    assert set(longest[:101]) == set(range(4, 21))
    assert set(longest[100:]) == {20}
    trainer = Trainer([config], CPU)
    lengths = []
    for step in range(200):
        trainer.step = step
        lengths.append(trainer._form().length)
    assert all(length <= most for length, most in zip(lengths, longest, strict=True))
    assert max(lengths) == 20


def test_a_closed_gate_scales_the_output_of_attention():
    torch.manual_seed(0)
    plain = SequenceModel(hybrid(width=8, blocks=1, heads=2), 20)
    gated = SequenceModel(hybrid(width=8, blocks=1, heads=2, gate_bias=-4), 20)
    gated.load_state_dict(plain.state_dict(), strict=False)
    one, other = (residual_parts(model, "attention")[0].body for model in (plain, gated))
    x = torch.randn(3, 5, 8)
    gate: Any = other.output_gate
    assert gate.bias.tolist() == [-4] * 8
    torch.testing.assert_close(other(x), torch.sigmoid(x @ gate.weight.T - 4) * one(x))
    assert plain.state_dict().keys() < gated.state_dict().keys()


def test_a_stack_has_runs_of_other_strengths_but_not_runs_without_the_option(small):
    strengths = (0.5, 1.0), (0.2, 0.1)
    one, other = (with_options(small, drop_path=DropPath(probability=p), bypass_loss=b) for p, b in strengths)
    assert stack_key(one) == stack_key(other) != stack_key(small)
    assert stack_key(with_options(small, slow_attention=SlowAttention(factor=0.1))) == stack_key(small)
    assert stack_key(with_options(small, detach_attention=True)) != stack_key(small)


class TestStatePassing:
    def test_a_sequence_that_continues_is_the_end_of_a_longer_one(self, small):
        """An oracle: the model on two sequences as one, with the sum of both."""
        config = with_options(
            replace(small, task=ModularSum(modulus=3), model=lstm(width=8, blocks=2), delay=None), state_passing=1.0
        )
        trainer, task = Trainer([config], CPU), config.task
        model, passing = trainer.backend.template, trainer._passing
        assert passing is not None
        first, second = (task.batch(0, "train", index, length=4, size=8) for index in (0, 1))
        carried = [tensor[0] for tensor in passing.carried]
        _, answer, states = passing.start(carried, first, 0, torch.tensor(0))
        with passing.continuing(states) as last:
            model(first.tokens)
        shifted, _, states = passing.start([answer, *last], second, 0, torch.tensor(1))
        with passing.continuing(states):
            logits = model(shifted.tokens)
        whole = model(torch.cat([first.tokens, second.tokens], dim=1))
        torch.testing.assert_close(logits, whole[:, first.shape[1] :])
        digits = torch.cat([first.tokens[:, :-1], second.tokens[:, :-1]], dim=1)
        assert torch.equal(shifted.targets[:, -1], digits.sum(dim=1) % 3)
        assert torch.equal(shifted.targets[:, 0], digits[:, :5].sum(dim=1) % 3)
        assert all(not part.carries_state and part.state is None for part in trainer._recurrences)

    def test_a_share_of_the_sequences_continues_and_the_others_start_anew(self, small):
        trainer = trained(with_options(replace(small, delay=None), state_passing=0.3), steps=2)
        passing, batch = trainer._passing, small.task.batch(0, "train", 2, length=4, size=8)
        assert passing is not None
        carried = [torch.ones_like(tensor[0]) for tensor in passing.carried]
        shares = []
        for index in range(60):
            _, _, states = passing.start(carried, batch, 0, torch.tensor(index))
            continues = [leaf.flatten(1).bool() for leaf in states]
            assert all(torch.equal(leaf.all(dim=1), leaf.any(dim=1)) for leaf in continues)
            shares.append(continues[0].any(dim=1).float().mean())
        assert torch.stack(shares).mean() == pytest.approx(0.3, abs=0.06)

    @pytest.mark.parametrize("name", [name for name, kind in Recurrence.members.items() if origin_of(kind) is None])
    def test_every_recurrence_can_pass_its_state(self, small, name):
        model = hybrid(width=8, blocks=1, heads=2, recurrence=name)
        config = with_options(replace(small, model=model), state_passing=1.0)
        for configs in ([config], [config, replace(config, seed=1)]):
            trainer = trained(*configs, steps=3)
            passing = trainer._passing
            assert passing is not None
            assert any(bool(state.abs().sum() > 0) for state in passing.states)
            assert weights(trainer).isfinite().all()

    def test_a_recurrence_that_does_not_start_from_zeros_is_refused(self, small, monkeypatch):
        layer = type(residual_parts(SequenceModel(small.model, 20), "recurrence")[0].body)
        forward = layer.forward

        def starts_from_ones(self, x, state=None, noise=None):
            ones = torch.ones(x.shape[0], x.shape[2])
            return forward(self, x, (ones, ones) if state is None else state, noise)

        monkeypatch.setattr(layer, "forward", starts_from_ones)
        with pytest.raises(ConfigError, match="the recurrence lstm does not start from a state of zeros"):
            Trainer([with_options(small, state_passing=1.0)], CPU)

    def test_tasks_whose_state_counts_on_say_so(self):
        assert (Composite(modulus=7).carried_modulus, ModularSum(modulus=2).carried_modulus) == (7, 2)
        assert (ParityRecall().carried_modulus, ParityRecall(coupled=True).carried_modulus) == (2, None)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "training.drop_path: a model of layout 'rm' has no attention; set training.drop_path=null": (
        {"model": lstm(width=8), "delay": None}, {"drop_path": DropPath()},
    ),
    "training.slow_attention: a model of layout 'rm' has no attention": (
        {"model": lstm(width=8), "delay": None}, {"slow_attention": SlowAttention(factor=0.1)},
    ),
    "training.detach_attention: a model of layout 'am' mixes tokens with attention only": (
        {"model": transformer(width=8), "delay": None}, {"detach_attention": True},
    ),
    "training.bypass_loss: a model of layout 'am' has no recurrence to track state with": (
        {"model": transformer(width=8), "delay": None}, {"bypass_loss": 1.0},
    ),
    "training.bypass_loss: the task recall has no state answer; set training.bypass_loss=0": (
        {"task": Recall(keys=16), "delay": None}, {"bypass_loss": 1.0},
    ),
    "training.project_gradients: the task modular_sum has one answer": (
        {"task": ModularSum(), "delay": None}, {"project_gradients": True},
    ),
    "training.state_passing: a sequence of the task coupled_value cannot continue another": (
        {"task": CoupledValue(keys=16), "delay": None}, {"state_passing": 0.5},
    ),
    "training.curriculum.start: 5 is not possible; it must be from 2, the shortest length of composite, to 4": (
        {}, {"curriculum": Curriculum(start=5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_makes_no_sense_is_refused_in_a_sentence(small, sentence):
    run_settings, options = REFUSED[sentence]
    with pytest.raises(ConfigError) as caught:
        with_options(replace(small, **run_settings), **options)
    assert str(caught.value).startswith(sentence)


def test_options_that_contradict_the_delay_are_refused(tiny, small):
    with pytest.raises(ConfigError, match=r"delayed.batch_size 8 and full.batch_size 16 must be the same"):
        with_options(tiny, state_passing=0.5)
    assert small.delay is not None
    with pytest.raises(
        ConfigError, match=r"probability falls to 0 by step 12, and attention is left out until step 12"
    ):
        with_options(small, drop_path=DropPath(falling=0.5))
    with pytest.raises(ConfigError, match=r"delay.withhold leaves the state answer sum out of the loss"):
        with_options(replace(small, delay=replace(small.delay, withhold=("sum",))), bypass_loss=1.0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SlowAttention(), "factor: 1.0 is not possible; it must be other than 1 without a warmup"),
        (lambda: DropPath(probability=0), "probability: 0.0 is not possible; it must be above 0"),
        (lambda: Curriculum(rising=0), "rising: 0.0 is not possible; it must be above 0 and at most 1"),
    ],
)
def test_options_without_an_effect_are_refused(make, sentence):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"attention_factor": 0.5},
            "training.attention_factor: 0.5 has no effect without a delay, because it applies after the switch; set "
            "training.attention_factor=1, or training.slow_attention.factor",
        ),
        ({"recurrence_factor": 0.0}, "training.recurrence_factor: 0 has no effect without a delay"),
        ({"watch": (64.0,)}, "training.watch: 320 needs task.keys of 160 or more"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_run_does_not_begin_with_a_setting_that_has_no_effect(tiny, tmp_path, options, sentence, capsys):
    """One that has begun with it, in an earlier version, is opened and continued."""
    joint = replace(tiny, delay=None)
    config = replace(joint, training=replace(joint.training, **options))
    for out in (None, tmp_path / "run"):
        with pytest.raises(ConfigError) as error:
            run(config, out, device="cpu")
        assert str(error.value).startswith(sentence)
    assert not (tmp_path / "run").exists()
    (tmp_path / "file.json").write_text(json.dumps(config.to_json()))
    for words in (["--dry-run"], ["--dry-run", "--seeds", "2"], ["--seeds", "2"]):
        with pytest.raises(SystemExit):
            main(["train", "--config", str(tmp_path / "file.json"), "--out", str(tmp_path / "runs"), *words])
        assert capsys.readouterr().err.startswith(f"latebloom: {sentence}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(config.to_json()))
    (tmp_path / "run" / "environment.json").write_text('{"resumed": []}')
    assert run(config, tmp_path / "run", device="cpu").config == config


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"drop_path": DropPath(falling=0.5)}, "sequences skip attention with another probability from step 1 on"),
        ({"curriculum": Curriculum(start=2)}, "the longest length is another one from step 3 on"),
    ],
)
def test_a_run_is_not_extended_if_its_options_would_have_been_others(small, options, what):
    full = replace(small.training.full, schedule="constant")
    found = with_options(replace(small, delay=None), full=full, **options)
    wanted = with_options(found, steps=48)
    assert what in extension_obstacle(found, wanted, 9, None)
    constant = with_options(found, drop_path=DropPath(), curriculum=None)
    assert extension_obstacle(constant, with_options(constant, steps=48), 9, None) == ""


def test_a_run_with_options_is_kept_in_its_folder(small, tmp_path):
    config = with_options(small, **OPTIONS["all at once"])
    done = run(replace(config, delay=replace(config.delay, until=at_step(6))), tmp_path, device="cpu")  # type: ignore[type-var]
    assert (sorted(tmp_path.glob("checkpoints/step-*"))[-1] / "passed.safetensors").exists()
    assert done.evaluation.lengths == [5, 10, 15]


@pytest.mark.parametrize("option", OPTIONS)
def test_the_memory_of_every_option_can_be_measured(tiny, option):
    """Joint training has the batches of the full phase only, whatever the size of those of the other."""
    assert tiny.training.delayed.batch_size < tiny.training.full.batch_size
    training = replace(tiny.training, delayed=replace(tiny.training.delayed, batch_size=64), **OPTIONS[option])
    largest_step(replace(tiny, delay=None, training=training), CPU, 2)


def test_every_task_that_can_be_continued_has_its_state_answer_in_the_first_tokens():
    for name, kind in Task.members.items():
        task = kind(name=name)
        if task.carried_modulus is not None:
            assert task.state_answer is not None
            batch = task.batch(0, "train", 0, length=max(8, task.shortest), size=64)
            answers = batch.targets[:, batch.columns[task.state_answer]]
            assert set(answers.unique().tolist()) == set(range(task.carried_modulus)), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
@pytest.mark.parametrize("option", OPTIONS)
def test_a_captured_step_with_an_option_is_the_eager_one(small, option):
    model = hybrid(width=64, blocks=2, look_back=True)
    task = replace(small.task, keys=64)  # enough for the tested lengths
    config = with_options(replace(small, model=model, task=task), length=12, **OPTIONS[option])
    for configs in ([config], [config, replace(config, seed=1, delay=None)]):
        found = []
        for capture in (True, False):
            trainer = Trainer(configs, torch.device("cuda"), capture=capture)
            for _ in range(20):
                trainer.advance()
            assert trainer.captured.reason is None
            found.append(torch.cat([tensor.flatten().float() for tensor in trainer.tensors()["sums"].values()]))
        assert torch.equal(*found)
