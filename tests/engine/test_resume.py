"""A run killed with SIGKILL at any moment and resumed is, bit for bit, the run that was never interrupted."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from latebloom import RunConfig, run, when_beyond

SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
from latebloom import load_config, run

def tell(seen):
    print(seen.step, seen.phase, flush=True)
    time.sleep(0.05)  # long enough to be killed right here

run(load_config(sys.argv[1]), sys.argv[2], device="cpu", observe=tell)
"""


def start(config: Path, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", SCRIPT, str(config), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_when(process: subprocess.Popen, reached) -> None:
    """SIGKILL the process as soon as a line that it prints satisfies the condition."""
    assert process.stdout is not None
    for line in process.stdout:
        step, phase = line.split()
        if reached(int(step), phase):
            break
    assert killed(process), "the process ended before it could be killed"


def killed(process: subprocess.Popen) -> bool:
    """SIGKILL a process; False if it had ended before."""
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def finish(config: Path, folder: Path) -> None:
    process = start(config, folder)
    process.communicate(timeout=120)
    assert process.returncode == 0


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    assert (one / "evaluation.json").read_bytes() == (other / "evaluation.json").read_bytes()
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    assert results[0] | {"seconds": 0} == results[1] | {"seconds": 0}
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[1][name]), name
    last = [sorted((folder / "checkpoints").glob("step-*"))[-1] for folder in (one, other)]
    optimizers = [load_file(path / "optimizer.safetensors") for path in last]
    for name in optimizers[0]:
        assert torch.equal(optimizers[0][name], optimizers[1][name]), name


@pytest.fixture(scope="module")
def longer(tiny_run) -> RunConfig:
    return replace(tiny_run, training=replace(tiny_run.training, steps=40))


@pytest.fixture(scope="module")
def undisturbed(longer, tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    config = folder / "config.json"
    config.write_text(json.dumps(longer.to_json()))
    run(longer, folder / "whole", device="cpu")
    return config, folder / "whole"


MOMENTS = {
    "before the first checkpoint": lambda step, phase: step >= 3,
    "before the switch": lambda step, phase: step >= 9,
    "at the switch": lambda step, phase: step >= 12,
    "after the switch": lambda step, phase: step >= 24,
    "while testing": lambda step, phase: phase == "testing",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed_is_bit_for_bit_the_same(undisturbed, tmp_path, moment):
    config, whole = undisturbed
    folder = tmp_path / "killed"
    kill_when(start(config, folder), MOMENTS[moment])
    assert not (folder / "result.json").exists()
    finish(config, folder)
    assert_same_run(whole, folder)


@pytest.mark.slow
def test_killed_again_and_again_at_random_moments(undisturbed, tmp_path):
    """Not at a moment that the run announces, but after a random time: also in the middle of a write.

    The short campaign of `tests/torture` does the same with fewer kills.
    """
    config, whole = undisturbed
    folder = tmp_path / "killed"
    chance = random.Random(0)
    kills = 0
    for _ in range(6):
        process = start(config, folder)
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        time.sleep(chance.uniform(0, 0.8))
        kills += killed(process)
        if (folder / "result.json").exists():
            break
    assert kills >= 2
    finish(config, folder)
    assert_same_run(whole, folder)


@pytest.mark.parametrize("hold", ["freeze", "ramp"])
def test_the_same_for_the_other_holds_and_a_trigger_with_a_memory(longer, tmp_path, hold):
    delay = replace(
        longer.delay,
        hold=hold,
        ramp_steps=9 if hold == "ramp" else 0,
        until=when_beyond(0.0001, latest=30, checks=3, every=4),
    )
    longer = replace(longer, delay=delay, training=replace(longer.training, state_noise=0.1))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(longer.to_json()))
    run(longer, tmp_path / "whole", device="cpu")
    for number, at in enumerate((6, 16, 21)):
        kill_when(start(config, tmp_path / "killed"), lambda step, phase, at=at: step >= at)
        assert not (tmp_path / "killed" / "result.json").exists(), number
    finish(config, tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
