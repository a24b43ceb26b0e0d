"""Paused runs and forks end with the same bits as runs that were trained alone and never paused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from latebloom import Delay, RunConfig, at_fraction, at_step, run, when_beyond
from latebloom.engine import loop
from latebloom.engine.checkpoint import latest_checkpoint
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import run_stacked, run_until
from latebloom.engine.pause import Stop, has_reached, latest_pause, paused_step, read_pause
from latebloom.engine.shared import fork, shared_steps
from latebloom.engine.times import PARTS
from latebloom.engine.trainer import Trainer
from latebloom.errors import CheckpointError, InterruptedRun, NonFiniteLossError
from latebloom.models.settings import hybrid

CPU = torch.device("cpu")


def assert_same_run(one: Path, other: Path) -> None:
    """Compare everything that two finished runs have written, apart from wall-clock time and provenance."""
    for file in ("metrics.jsonl", "evaluation.json", "config.json"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    assert results[0] | {"seconds": 0} == results[1] | {"seconds": 0}
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def assert_same_optimizer(one: Path, other: Path) -> None:
    saved = [latest_checkpoint(folder / "checkpoints") for folder in (one, other)]
    states = [load_file(path / "optimizer.safetensors") for path in saved if path]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.fixture
def whole(tiny, tmp_path) -> Path:
    run(tiny, tmp_path / "whole", device="cpu")
    return tmp_path / "whole"


def test_a_run_that_was_paused_is_bit_for_bit_one_that_was_not(tiny, whole, tmp_path):
    """Before the switch at step 12, at it, and after it; not where it logs, checks or saves anyway."""
    place = RunFolder(tmp_path / "paused")
    for step in (7, 12, 20):
        run_until(tiny, place.path, Stop(step), device="cpu")
        assert not place.is_finished
        assert paused_step(place) == step
        assert has_reached(place, Stop(step))
        assert not has_reached(place, Stop(step + 1))
    run(tiny, place.path, device="cpu")
    assert_same_run(whole, place.path)
    assert_same_optimizer(whole, place.path)
    pauses = {step: read_pause(place, step) for step in (7, 12, 20)}
    assert [(one.switch_step, one.withheld) for one in pauses.values() if one] == [
        (None, ("recall",)),
        (12, ()),
        (12, ()),
    ]
    times = json.loads((place.path / "times.json").read_text())
    assert set(times) == set(PARTS)
    assert min(times[part] for part in ("set-up", "steps", "evaluation", "checkpoints")) > 0


def test_a_pause_is_tested_with_attention_as_it_is_then(tiny, tmp_path):
    """Before the switch attention is bypassed, so the test is that of the model without it."""
    run_until(tiny, tmp_path / "run", Stop(7), device="cpu")
    trainer = Trainer([tiny], CPU)
    for _ in range(7):
        trainer.advance()
    with trainer.current_gates() as each:
        from latebloom.evaluation.evaluate import evaluate_each

        wanted = evaluate_each(
            each, tiny.task, tiny.test_lengths, training_length=5, sequences=32, seeds=trainer.seeds, device=CPU
        )
    found = latest_pause(RunFolder(tmp_path / "run"))
    assert found is not None
    assert [found.evaluation] == wanted


def test_a_pause_that_is_interrupted_in_its_test_is_finished_later(tiny, tmp_path):
    def stop(seen):
        if seen.phase == "testing":
            raise InterruptedRun("stopped by the test")

    with pytest.raises(InterruptedRun):
        run_until(tiny, tmp_path / "run", Stop(10), device="cpu", observe=stop)
    assert latest_pause(RunFolder(tmp_path / "run")) is None
    first = []
    run_until(tiny, tmp_path / "run", Stop(10), device="cpu", observe=first.append)
    assert first[0].step == 10
    assert latest_pause(RunFolder(tmp_path / "run")) is not None


def test_mistakes_are_told(tiny, tmp_path):
    run_until(tiny, tmp_path / "run", Stop(10), device="cpu")
    with pytest.raises(CheckpointError, match="has gone on to step 10, so it cannot be paused at step 9"):
        run_until(tiny, tmp_path / "run", Stop(9), device="cpu")
    (file,) = (tmp_path / "run").glob("pause-*.json")
    file.write_text(file.read_text().replace('"step": 10', '"step": 11'))
    with pytest.raises(CheckpointError, match="damaged"):
        read_pause(RunFolder(tmp_path / "run"), 10)


def stackable(tiny: RunConfig) -> RunConfig:
    return replace(tiny, training=replace(tiny.training, delayed=tiny.training.full))


def finish_stack(configs: dict[str, RunConfig], folder: Path) -> None:
    assert run_stacked(configs, folder, CPU).failed == {}


def test_a_stack_that_was_paused_is_bit_for_bit_one_that_was_not(tiny, tmp_path, monkeypatch):
    """Its runs have other switches and holds, so that the optimizer counts of attention differ."""
    tiny = stackable(tiny)
    assert tiny.delay is not None
    configs = {
        "dat": tiny,
        "late": replace(tiny, seed=1, delay=replace(tiny.delay, until=at_step(18))),
        "joint": replace(tiny, seed=2, delay=None),
        "freeze": replace(tiny, seed=3, delay=replace(tiny.delay, hold="freeze")),
    }
    finish_stack(configs, tmp_path / "whole")
    folder = tmp_path / "paused"
    run_stacked(configs, folder, CPU, stop=Stop(7))
    # Killed after it was dissolved, before its own checkpoints were removed.
    monkeypatch.setattr(loop, "remove_folder", lambda path: None)
    run_stacked(configs, folder, CPU, stop=Stop(14))
    monkeypatch.undo()
    assert [paused_step(RunFolder(folder / name)) for name in configs] == [14] * 4
    finish_stack(configs, folder)
    for name in configs:
        assert_same_run(tmp_path / "whole" / name, folder / name)
    assert not list(folder.glob("stack-*"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_on_a_gpu_pauses_change_no_bit_alone_and_in_a_stack(tiny, tmp_path):
    """Steps are captured anew after a pause."""
    tiny = stackable(replace(tiny, model=replace(tiny.model, width=16)))
    device, configs = torch.device("cuda"), {f"seed-{seed}": replace(tiny, seed=seed) for seed in range(3)}
    for stop in (None, Stop(7), Stop(14), None):
        place = tmp_path / ("whole" if stop is None and not (tmp_path / "whole").exists() else "paused")
        assert run_stacked(configs, place, device, stop=stop).failed == {}
    for name in configs:
        assert_same_run(tmp_path / "whole" / name, tmp_path / "paused" / name)
    run(tiny, tmp_path / "alone", device="cuda")
    run_until(tiny, tmp_path / "again", Stop(13), device="cuda")
    run(tiny, tmp_path / "again", device="cuda")
    assert_same_run(tmp_path / "alone", tmp_path / "again")


def test_a_run_goes_on_from_a_stack_alone_and_into_another_stack(tiny, tmp_path):
    """The state that a stack leaves is that of a run alone at this step, up to rounding; both ways."""
    tiny = stackable(tiny)
    configs = {f"seed-{seed}": replace(tiny, seed=seed) for seed in range(3)}
    run_stacked(configs, tmp_path, CPU, stop=Stop(15, test=False))
    run_until(configs["seed-0"], tmp_path / "alone", Stop(15, test=False), device="cpu")
    saved = [latest_checkpoint(tmp_path / name / "checkpoints") for name in ("seed-0", "alone")]
    for file in ("model", "optimizer", "sums"):
        parts = [load_file(path / f"{file}.safetensors") for path in saved if path]
        assert parts[0].keys() == parts[1].keys()
        for name in parts[0]:
            assert torch.allclose(parts[0][name], parts[1][name], atol=1e-2), name  # AdamW enlarges rounding
            assert not name.endswith("/step") or torch.equal(parts[0][name], parts[1][name])
    run(configs["seed-0"], tmp_path / "seed-0", device="cpu")
    finish_stack({name: configs[name] for name in ("seed-1", "seed-2")}, tmp_path)
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("seed-0", "seed-1")]
    assert [json.loads(line)["step"] for line in lines[0]] == [json.loads(line)["step"] for line in lines[1]]


def test_a_run_that_fails_in_a_stack_fails_again_at_once_and_the_others_go_on(tiny, tmp_path):
    tiny = stackable(tiny)
    wild = replace(tiny.training.full, learning_rate=1e30)
    bad = replace(tiny, seed=1, delay=None, training=replace(tiny.training, full=wild))
    configs = {"good": tiny, "also": replace(tiny, seed=2), "bad": bad}
    assert list(run_stacked(configs, tmp_path, CPU, stop=Stop(9)).failed) == ["bad"]
    seen = []
    with pytest.raises(NonFiniteLossError, match="no checkpoint was saved"):
        run_until(bad, tmp_path / "bad", Stop(9), device="cpu", observe=seen.append)
    assert seen == []  # no step was trained
    finish_stack({name: configs[name] for name in ("good", "also")}, tmp_path)


# Shared beginnings.

STEPS = 24


def variants(tiny: RunConfig) -> st.SearchStrategy[RunConfig]:
    """Runs that differ from `tiny` in what may be shared: the delay, the phases and what follows the switch."""
    untils = st.sampled_from(
        [at_step(6), at_step(12), at_step(19), at_fraction(0.5), when_beyond(0.01, every=5, checks=1, latest=16),
         when_beyond(0.9, multiple=2, every=9, latest=20)]
    )  # fmt: skip
    delays = st.one_of(
        st.none(),
        st.builds(
            lambda until, hold, withhold: Delay(
                until=until, hold=hold, ramp_steps=3 * (hold == "ramp"), withhold=withhold
            ),
            untils, st.sampled_from(["bypass", "freeze", "ramp"]), st.sampled_from([(), ("recall",)]),
        ),
    )  # fmt: skip
    changes = st.fixed_dictionaries(
        {
            "restart": st.booleans(),
            "recurrence_factor": st.sampled_from([1.0, 0.3]),
            "full": st.sampled_from([{}, {"learning_rate": 1e-3}, {"batch_size": 4}, {"cycles": 2}]),
            "delayed": st.sampled_from([{}, {"warmup": 2}]),
            "state_noise": st.sampled_from([0.0, 0.0, 0.1]),
            "checkpoint_every": st.sampled_from([5, 7]),
        }
    )

    def build(delay: Delay | None, changed: dict) -> RunConfig:
        same = {"warmup": 4, "schedule": "cosine"} if delay and not changed["restart"] else {}
        phases = {name: replace(getattr(tiny.training, name), **changed[name] | same) for name in ("delayed", "full")}
        if same:
            phases = {name: replace(phase, cycles=1) for name, phase in phases.items()}
        return replace(tiny, delay=delay, training=replace(tiny.training, **changed | phases))

    return st.builds(build, delays, changes)


def state_after(config: RunConfig, steps: int) -> tuple[dict, dict]:
    trainer = Trainer([config], CPU)
    for _ in range(steps):
        trainer.advance()
    tensors = {
        f"{file}/{name}": value.clone() for file, group in trainer.tensors().items() for name, value in group.items()
    }
    return tensors, trainer.state()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_runs_are_identical_for_as_long_as_they_share_steps(tiny, data):
    one, more = data.draw(variants(tiny)), data.draw(variants(tiny))
    changed = {name: getattr(more.training, name) for name in ("recurrence_factor", "checkpoint_every")}
    delay = more.delay
    if one.delay and delay:
        delay = replace(delay, hold=one.delay.hold, ramp_steps=one.delay.ramp_steps, withhold=one.delay.withhold)
    related = [more, replace(one, training=replace(one.training, **changed))]
    if one.delay and delay:
        related += [replace(one, delay=delay), replace(related[1], delay=delay)]
    for other in related:
        steps = shared_steps(one, other)
        assert steps == shared_steps(other, one)
        assert 0 <= steps < STEPS
        (tensors, state), (wanted, wanted_state) = (state_after(config, steps) for config in (one, other))
        assert steps == 0 or state == wanted_state
        assert steps == 0 or tensors.keys() == wanted.keys()
        assert steps == 0 or all(torch.equal(tensors[name], wanted[name]) for name in wanted)


def test_what_is_shared_is_known_from_the_settings(tiny):
    def until(trigger, **more):
        return replace(tiny, delay=replace(tiny.delay, until=trigger, **more))

    def training(**more):
        return replace(tiny, training=replace(tiny.training, **more))

    full = tiny.training.full
    assert shared_steps(tiny, tiny) == 23
    assert shared_steps(tiny, until(at_step(18))) == 5  # after the warm-up, the rate depends on the switch
    flat = training(restart=False, delayed=full)
    assert shared_steps(flat, replace(flat, delay=replace(tiny.delay, until=at_step(18)))) == 11
    assert shared_steps(flat, replace(flat, delay=replace(tiny.delay, until=at_fraction(0.5)))) == 11
    looking = replace(flat, delay=replace(tiny.delay, until=when_beyond(latest=20, every=6)))
    assert shared_steps(flat, looking) == 5  # it measures at step 6
    watching = replace(flat, delay=replace(tiny.delay, until=when_beyond(latest=20, every=10, multiple=2)))
    assert shared_steps(flat, watching) == 7  # and this one adds a length to the check at step 8
    assert shared_steps(tiny, until(at_step(12), hold="ramp", ramp_steps=4)) == 12
    assert shared_steps(tiny, training(recurrence_factor=0.3)) == 12
    assert shared_steps(tiny, training(full=replace(full, learning_rate=1e-3))) == 12
    assert shared_steps(tiny, training(full=replace(full, batch_size=4))) == 12
    for other in (
        replace(tiny, seed=1),
        replace(tiny, delay=None),
        until(at_step(12), withhold=()),
        training(state_noise=0.1),
        training(log_every=4),
        training(steps=30),
        replace(tiny, model=hybrid(width=8, blocks=2, heads=2, scores="log_n")),
    ):
        assert shared_steps(tiny, other) == 0
    assert shared_steps(tiny, replace(tiny, evaluation=replace(tiny.evaluation, sequences=8))) == 23


AFTER = {
    "a slower recurrence": lambda run: replace(run, training=replace(run.training, recurrence_factor=0.3)),
    "a ramp": lambda run: replace(run, delay=replace(run.delay, hold="ramp", ramp_steps=5)),
    "another switch": lambda run: replace(run, delay=replace(run.delay, until=at_step(18))),
    "a trigger that measures": lambda run: replace(
        run, delay=replace(run.delay, until=when_beyond(latest=20, every=7))
    ),
}


@pytest.mark.parametrize(("treatment", "stacked"), [*((name, False) for name in AFTER), ("another switch", True)])
def test_a_fork_is_bit_for_bit_a_run_that_was_trained_alone(tiny, tmp_path, treatment, stacked):
    one = stackable(tiny)
    one = replace(one, training=replace(one.training, restart=False))
    other = AFTER[treatment](one)
    step = shared_steps(one, other)
    assert step >= 6
    seeds = [replace(one, seed=seed) for seed in (0, 1)]
    forks = [replace(other, seed=seed) for seed in (0, 1)]
    sources = {f"one/{config.seed}": config for config in seeds}
    targets = {f"other/{config.seed}": config for config in forks}
    if stacked:
        finish_stack(targets, tmp_path / "whole")
        run_stacked(sources, tmp_path, CPU, stop=Stop(step, test=False))
    else:
        for name, config in targets.items():
            run(config, tmp_path / "whole" / name, device="cpu")
        for name, config in sources.items():
            run_until(config, tmp_path / name, Stop(step, test=False), device="cpu")
    for (source, _), (target, config) in zip(sources.items(), targets.items(), strict=True):
        assert fork(RunFolder(tmp_path / source), RunFolder(tmp_path / target), config, step, "cpu")
        assert not fork(RunFolder(tmp_path / source), RunFolder(tmp_path / target), config, step, "cpu")
    if stacked:
        finish_stack(targets, tmp_path)
    else:
        for name, config in targets.items():
            run(config, tmp_path / name, device="cpu")
    for name in targets:
        assert_same_run(tmp_path / "whole" / name, tmp_path / name)
        about = json.loads((tmp_path / name / "environment.json").read_text())
        assert about["forked"]["step"] == step


@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "checkpoints/step-00000010/model.safetensors"])
def test_a_damaged_run_is_not_forked_and_the_other_is_trained_from_the_beginning(tiny, tmp_path, file):
    other = replace(tiny, training=replace(tiny.training, recurrence_factor=0.3))
    run_until(tiny, tmp_path / "one", Stop(10, test=False), device="cpu")
    (tmp_path / "one" / file).write_text("{}")
    assert not fork(RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other"), other, 10, "cpu")
    assert run(other, tmp_path / "other", device="cpu").evaluation == run(other, device="cpu").evaluation


def test_what_differs_cannot_be_forked(tiny, tmp_path):
    run_until(tiny, tmp_path / "one", Stop(10, test=False), device="cpu")
    other = replace(tiny, training=replace(tiny.training, state_noise=0.1))
    assert not fork(RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other"), other, 10, "cpu")
    assert not (tmp_path / "other").exists()
