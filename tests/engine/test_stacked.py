"""A run of a stack is the run that its configuration gives alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from latebloom import Delay, Phase, RunConfig, at_step, lstm, run, transformer, when_beyond
from latebloom.engine import loop
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import run_stacked
from latebloom.engine.stacked import Stacked
from latebloom.engine.stacks import stack_key
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.studies.stacks import plan_waves

CPU = torch.device("cpu")


def with_training(config: RunConfig, **changes) -> RunConfig:
    return replace(config, training=replace(config.training, **changes))


@pytest.fixture
def small(tiny):
    """Runs of a hundred steps in which everything happens."""
    phase = Phase(learning_rate=5e-3, warmup=10, batch_size=8)
    return with_training(tiny, steps=100, delayed=phase, full=phase)


@pytest.fixture
def smaller(small):
    """The same with one block, for tests that take many steps."""
    return replace(small, model=replace(small.model, blocks=1))


def different_runs(small: RunConfig) -> dict[str, RunConfig]:
    """Every way in which runs of one stack may differ."""
    delay = small.delay
    assert delay is not None
    slow = replace(small.training.full, learning_rate=1e-3, warmup=5, schedule="constant")
    return {
        "delayed": replace(small, seed=1),
        "joint": with_training(replace(small, delay=None, seed=3), full=replace(small.training.full, cycles=2)),
        "another rate": with_training(replace(small, seed=4), full=slow, recurrence_factor=0.5, attention_factor=2.0),
        "another way": with_training(replace(small, seed=9), restart=False, state_noise=0.1, weigh="positions"),
        "later": replace(small, seed=5, delay=replace(delay, until=at_step(60), withhold=())),
        "frozen": replace(small, seed=6, delay=Delay(until=at_step(30), hold="freeze")),
        "asked later": replace(small, seed=10, delay=replace(delay, until=at_step(40), hold="none")),
        "ramp": replace(small, seed=7, delay=Delay(until=at_step(20), hold="ramp", ramp_steps=30)),
        "looking": replace(small, seed=8, delay=Delay(until=when_beyond(0.2, latest=50, every=7, multiple=2))),
    }


@pytest.mark.parametrize("settings", [{}, {"weigh": "positions", "state_noise": 0.1}])
def test_stacked_runs_follow_their_standalone_runs(smaller, settings):
    configs = [with_training(config, **settings) for config in different_runs(smaller).values()]
    stack, alone = Trainer(configs, CPU), [Trainer([config], CPU) for config in configs]
    for step in range(1, 101):
        assert stack.advance() == [i for i, trainer in enumerate(alone) if trainer.advance()]
        if step % 10 == 0:
            together = stack.read_means()
            for i, trainer in enumerate(alone):
                expected = trainer.read_means()[0]
                got = {name: together[i][name] for name in expected}
                assert got == pytest.approx(expected, rel=1e-4), (step, i)
    assert [run.switch for run in stack.runs] == [trainer.runs[0].switch for trainer in alone]
    # Not the weights: a key's bias has no effect, so its gradient is rounding alone, which Adam makes steps of.
    tokens = smaller.task.batch(0, "test", 0, length=9, size=4).tokens
    for i, trainer in enumerate(alone):
        models = stack.backend.model(i), trainer.backend.model(0)
        torch.testing.assert_close(*(model(tokens) for model in models), rtol=1e-3, atol=1e-3)


def test_attention_that_is_held_back_does_not_move_by_a_bit_in_a_stack(small):
    configs = list(different_runs(small).values())
    stack = Trainer(configs, CPU)
    assert isinstance(stack.backend, Stacked)
    start, flat = stack.backend.ends[-2], stack.backend.flat
    first = flat[:, start:].clone()
    for _ in range(15):
        stack.advance()
    for i, state in enumerate(stack.runs):
        delay = state.config.delay
        held = delay is not None and state.switch.step is None and delay.hold != "none"
        assert torch.equal(flat[i, start:], first[i]) == held, state.config


@pytest.mark.parametrize("model", [lstm(width=8, blocks=1), transformer(width=8, blocks=1, heads=2)])
def test_models_without_one_of_the_parts_are_stacked_too(small, model):
    configs = [replace(small, model=model, delay=None, seed=seed) for seed in (1, 2)]
    stack, alone = Trainer(configs, CPU), [Trainer([config], CPU) for config in configs]
    for _ in range(10):
        stack.advance()
        for trainer in alone:
            trainer.advance()
    for i, trainer in enumerate(alone):
        assert stack.read_means([i])[i] == pytest.approx(trainer.read_means()[0], rel=1e-5)


def test_batches_of_different_sizes_are_stacked_where_all_switch_at_once(tiny):
    configs = [replace(tiny, seed=seed) for seed in (1, 2)]  # 8 sequences while delayed, 16 after
    stack, alone = Trainer(configs, CPU), [Trainer([config], CPU) for config in configs]
    for _ in range(20):
        assert stack.advance() == [i for i, trainer in enumerate(alone) if trainer.advance()]
    for i, trainer in enumerate(alone):
        assert stack.read_means([i])[i]["loss"] == pytest.approx(trainer.read_means()[0]["loss"], rel=1e-5)
    other = replace(tiny, seed=3, delay=Delay(until=at_step(13)))
    with pytest.raises(ConfigError, match="cannot be stacked"):
        Trainer([*configs, other], CPU)


def test_runs_of_other_shapes_are_refused(small):
    with pytest.raises(ConfigError, match=r"cannot be stacked: .* averaging of the loss, state noise and delay"):
        Trainer([small, replace(small, model=replace(small.model, width=16))], CPU)


def test_a_task_that_cannot_be_stacked_keeps_its_runs_out_of_stacks(small, monkeypatch):
    assert stack_key(small).hash == stack_key(replace(small, seed=1)).hash
    monkeypatch.setattr(type(small.task), "stacking", "none")
    assert stack_key(small).hash != stack_key(replace(small, seed=1)).hash


def test_a_stack_leaves_the_folders_that_its_runs_would_leave_alone(small, tmp_path):
    configs = different_runs(small)
    seen: dict[str, set[str]] = {name: set() for name in configs}
    outcome = run_stacked(configs, tmp_path, CPU, observe=lambda name, progress: seen[name].add(progress.phase))
    assert outcome.failed == {}
    for name, config in configs.items():
        alone = run(config, tmp_path / "alone" / name, device="cpu")
        assert outcome.trained[name].evaluation == alone.evaluation
        assert outcome.trained[name].result | {"seconds": 0, "stacked": 0} == alone.result | {
            "seconds": 0,
            "stacked": 0,
        }
        together, expected = (
            [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
            for folder in (tmp_path, tmp_path / "alone")
        )
        assert [line.keys() for line in together] == [line.keys() for line in expected]
        for line, wanted in zip(together, expected, strict=True):
            assert line.get("loss", 0) == pytest.approx(wanted.get("loss", 0), rel=1e-4)
            assert line.get("learning_rate") == wanted.get("learning_rate")
            assert line.get("check") == wanted.get("check")
        assert {"testing", "done", "full"} <= seen[name]


def test_a_run_that_goes_non_finite_is_dropped_and_the_others_go_on(small, tmp_path):
    wild = replace(small.training.full, learning_rate=1e30, warmup=0)
    configs = {
        "good": replace(small, seed=1),
        "bad": with_training(replace(small, seed=2, delay=None), full=wild),
        "also good": replace(small, seed=3),
    }
    outcome = run_stacked(configs, tmp_path, CPU)
    assert list(outcome.trained) == ["good", "also good"]
    assert "not finite at step" in str(outcome.failed["bad"])
    assert "learning rate peak 1e+30" in str(outcome.failed["bad"])
    assert not (tmp_path / "bad" / "result.json").exists()
    alone = run(configs["also good"], device="cpu")
    assert outcome.trained["also good"].evaluation == alone.evaluation


def test_a_stack_that_is_killed_while_its_checkpoints_are_removed_leaves_none(small, tmp_path, monkeypatch):
    """Half of them without their members.json would be in the way of everything else in the folder."""
    remove = shutil.rmtree

    def die(path, **options):
        if Path(path).parent == tmp_path and (Path(path) / "members.json").exists():
            (Path(path) / "members.json").unlink()
            raise KeyboardInterrupt
        remove(path, **options)

    configs = {f"seed-{seed}": with_training(replace(small, seed=seed), steps=60) for seed in (1, 2)}
    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        run_stacked(configs, tmp_path, CPU)
    monkeypatch.undo()
    assert all((tmp_path / name / "result.json").exists() for name in configs)
    more = configs | {"seed-3": replace(configs["seed-1"], seed=3)}
    assert [list(wave) for wave in plan_waves(more, tmp_path, lambda config, wanted: 8)] == [["seed-3"]]


def test_a_stack_restores_a_finished_run_that_was_damaged_before_the_others_ended(small, tmp_path, monkeypatch):
    configs = {f"seed-{seed}": replace(small, seed=seed) for seed in (1, 2)}
    run_stacked(configs, tmp_path / "whole", CPU)

    class Killed(BaseException):
        pass

    write = RunFolder.write_result

    def write_the_first(folder, *arguments):
        if folder.path.name == "seed-2":
            raise Killed
        write(folder, *arguments)

    monkeypatch.setattr(RunFolder, "write_result", write_the_first)
    with pytest.raises(Killed):
        run_stacked(configs, tmp_path / "killed", CPU)
    monkeypatch.undo()
    (tmp_path / "killed" / "seed-1" / "model" / "model.safetensors").write_bytes(b"")
    run_stacked(configs, tmp_path / "killed", CPU)
    for name in configs:
        files = [tmp_path / folder / name / "model" / "model.safetensors" for folder in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_slow_disk_does_not_take_all_the_time(small, tmp_path, monkeypatch):
    """A step takes one second by this clock, and a save thirty; one is saved every twenty seconds of training."""
    clock, steps = SimpleNamespace(now=0.0), []

    def advance(self):
        clock.now += 1.0
        return original(self)

    def slow(folder, tensors, state, run):
        steps.append(state["step"])
        clock.now += 30.0

    original = Trainer.advance
    monkeypatch.setattr(Trainer, "advance", advance)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(loop, "save_checkpoint", slow)
    configs = {f"seed-{seed}": replace(small, seed=seed) for seed in (1, 2)}
    run_stacked(configs, tmp_path, CPU)
    assert [later - earlier for earlier, later in pairwise(steps[:3])] == [21, 21]


SCRIPT = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from latebloom import load_config
from latebloom.errors import InterruptedRun
from latebloom.engine import loop

loop.SECONDS_BETWEEN_CHECKPOINTS = 0.0
out, stop_at, *files = sys.argv[1:]

def tell(name, seen):
    print(seen.step, flush=True)

configs = {Path(file).stem: load_config(file) for file in files}
try:
    loop.run_stacked(configs, out, torch.device("cpu"), observe=tell)
except InterruptedRun as stop:
    print(stop)
    sys.exit(7)
"""


def started(out: Path, files: list[Path]) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(out), "0", *map(str, files)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stack_that_is_stopped_and_started_again_is_bit_for_bit_the_one_that_was_not(smaller, tmp_path, number):
    configs = {name.replace(" ", "-"): config for name, config in different_runs(smaller).items()}
    files = []
    for name, config in configs.items():
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(config.to_json()))
    whole = run_stacked(configs, tmp_path / "whole", CPU)
    for moment in (17, 55):  # before all have switched, and after
        process = started(tmp_path / "parts", files)
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= moment:
                break
        os.kill(process.pid, number)
        process.communicate(timeout=120)
        assert process.returncode == (7 if number == signal.SIGTERM else -signal.SIGKILL)
    parts = run_stacked(configs, tmp_path / "parts", CPU)
    for name, trained in whole.trained.items():
        for key, value in trained.model.state_dict().items():
            assert torch.equal(value, parts.trained[name].model.state_dict()[key])
        one, other = ((tmp_path / folder / name / "metrics.jsonl").read_bytes() for folder in ("whole", "parts"))
        assert one == other
