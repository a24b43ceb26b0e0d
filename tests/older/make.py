"""Make the test data: runs, stacks and studies of an earlier version, and what that version makes of them.

It was run once, on the tag old-engine, and is kept to say what the data are:

    git worktree add ../old old-engine
    OMP_NUM_THREADS=1 PYTHONPATH=../old/src python tests/older/make.py

Every run is of one thread on a CPU. An interrupted one is copied, and the earlier version continues the copy; the
outcome is the one that every later version must reach from the same checkpoint.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportCallIssue=false
# The names that it imports are those of the earlier version.

import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from data.study import at_rate
from latebloom.training import environment
from latebloom.training.stacked_run import run_stacked
from outcomes import arithmetic, outcome

from latebloom import (
    Delay,
    ModularSum,
    Phase,
    Recall,
    RunConfig,
    at_fraction,
    at_step,
    hybrid,
    lstm,
    run,
    transformer,
    when_beyond,
)
from latebloom.errors import InterruptedRun
from latebloom.studies.execute import execute
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.stacks import run_in_stacks

DATA = Path(__file__).parent / "data"
CPU = torch.device("cpu")


class Killed(BaseException):
    """Ends a run without a last checkpoint, as SIGKILL does."""


def with_training(config: RunConfig, **changes) -> RunConfig:
    return replace(config, training=replace(config.training, **changes))


BASE = replace(at_rate(5e-3), model=hybrid(width=8, blocks=1, heads=2, look_back=True))
BASE = with_training(BASE, checkpoint_every=24)
SHARPENED = replace(
    BASE, model=hybrid(width=8, blocks=1, heads=2, sharpen=True, look_back=True, positions="rotary"), seed=3
)
RUNS = {
    "finished": replace(
        with_training(BASE, full=Phase(learning_rate=3e-3, warmup=4, batch_size=16)),
        delay=Delay(until=at_step(12), withhold=("recall",)),
        seed=1,
    ),
    "before-switch": replace(
        with_training(BASE, state_noise=0.1),
        delay=Delay(until=when_beyond(1e-4, latest=20, checks=4, every=4), hold="freeze", withhold=("recall",)),
        seed=2,
    ),
    "after-switch": replace(
        with_training(BASE, checkpoint_every=12), delay=Delay(until=at_fraction(0.25), hold="ramp", ramp_steps=12)
    ),
    "rotary": with_training(SHARPENED, weigh="positions"),
    "learned": replace(
        with_training(BASE, recurrence_factor=0.5),
        model=hybrid(width=8, blocks=1, heads=2, positions="learned", context=64),
        delay=Delay(until=at_step(6)),
    ),
    "transformer": replace(BASE, task=Recall(keys=20, values=4), model=transformer(width=8, blocks=1, heads=2)),
    "lstm": replace(BASE, task=ModularSum(modulus=3), model=lstm(width=8, blocks=2), seed=2**40),
}
"""One run each: one is finished, the others are interrupted."""
STOPS = {"before-switch": 12, "after-switch": 18, "rotary": 12, "learned": 12, "transformer": 6, "lstm": 18}
"""The step of the interruption. Only after-switch is killed there, so that its metrics go beyond its checkpoint."""

LONGER = with_training(BASE, steps=48)
CONSTANT = Phase(learning_rate=1e-3, warmup=5, schedule="constant", batch_size=8)
WILD = Phase(learning_rate=1e30, warmup=0, batch_size=8)
STACKS = {
    "stack": {
        "delayed": replace(LONGER, delay=Delay(until=at_step(12), withhold=("recall",)), seed=1),
        "joint": with_training(replace(LONGER, seed=3), full=replace(LONGER.training.full, cycles=2)),
        "rates": with_training(
            replace(LONGER, delay=Delay(until=at_step(30)), seed=4),
            full=CONSTANT,
            recurrence_factor=0.5,
            attention_factor=2.0,
        ),
        "noise": with_training(
            replace(LONGER, delay=Delay(until=at_step(18)), seed=9), restart=False, state_noise=0.1, weigh="positions"
        ),
        "frozen": replace(LONGER, delay=Delay(until=at_step(30), hold="freeze"), seed=6),
        "none-held": replace(LONGER, delay=Delay(until=at_step(30), hold="none", withhold=("recall",)), seed=10),
        "ramp": replace(LONGER, delay=Delay(until=at_step(15), hold="ramp", ramp_steps=20), seed=7),
        "beyond": replace(LONGER, delay=Delay(until=when_beyond(1e-4, latest=40, checks=4, every=7)), seed=8),
    },
    "stack-rotary": {
        "delayed": with_training(replace(SHARPENED, delay=Delay(until=at_step(6)))),
        "joint": SHARPENED,
        "failed": with_training(SHARPENED, full=WILD),
    },
}
"""Runs that were trained at once. Three of the first eight have switched when they are interrupted."""
STACK_STOPS = {"stack": 24, "stack-rotary": 12}


def stop_at(step: int) -> Callable[..., None]:
    """Return an observer that asks the process to stop, as Ctrl-C and SIGTERM do."""

    def observe(*words) -> None:
        if words[-1].step >= step:
            os.kill(os.getpid(), signal.SIGTERM)

    return observe


def kill_at(step: int) -> Callable[..., None]:
    def observe(seen) -> None:
        if seen.step >= step:
            raise Killed

    return observe


def interrupted(train: Callable[[], object]) -> None:
    try:
        train()
    except (InterruptedRun, Killed):
        return
    raise AssertionError("it was not interrupted")


def continued(folder: Path, train: Callable[[Path], object], names: list[str]) -> None:
    """Let this version finish a copy of a folder, and write the outcome of each run in it into data/expected."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / folder.name
        shutil.copytree(folder, copy)
        train(copy)
        for name in names:
            expected = DATA / "expected" / folder.name / name
            expected.mkdir(parents=True)
            shutil.copy(copy / name / "metrics.jsonl", expected)
            (expected / "outcome.json").write_text(json.dumps(outcome(copy / name)) + "\n")
        if folder.name == "study":
            for file in copy.glob("*.parquet"):
                shutil.copy(file, DATA / "expected" / folder.name)


def in_turn(stop: str | None = None) -> Callable[[dict[str, RunConfig], Path], dict[str, str]]:
    """Return a runner of a study's runs without processes, which stops in the middle of one of them."""

    def runner(configs: dict[str, RunConfig], folder: Path) -> dict[str, str]:
        for name, config in configs.items():
            run(config, folder / name, device="cpu", observe=stop_at(12) if name == stop else None)
        return {}

    return runner


def stacked(stop: int = 10**9) -> Callable[[dict[str, RunConfig], Path], dict[str, str]]:
    """Return a runner of a study's runs in stacks, as on a GPU."""
    return lambda configs, folder: run_in_stacks(configs, folder, CPU, stop_at(stop), fit=lambda config, device: 8)


def make_runs() -> None:
    for name, config in RUNS.items():
        folder = DATA / "runs" / name
        if name == "finished":
            run(config, folder, device="cpu")
        else:
            observe = (kill_at if name == "after-switch" else stop_at)(STOPS[name])
            interrupted(partial(run, config, folder, device="cpu", observe=observe))
    continued(DATA / "runs", lambda copy: [run(c, copy / n, device="cpu") for n, c in RUNS.items()], list(RUNS))


def make_stacks() -> None:
    for name, configs in STACKS.items():
        folder, stop = DATA / name, STACK_STOPS[name]
        interrupted(partial(run_stacked, configs, folder, CPU, observe=stop_at(stop)))
        finished = [member for member in configs if member != "failed"]
        continued(folder, lambda copy, configs=configs: run_stacked(configs, copy, CPU), finished)


def make_studies() -> None:
    name, function = find_study(str(DATA / "study.py"))
    plan = plan_of(name, function, "tiny")
    runners = {"study": (in_turn("composite/joint/seed-1"), in_turn()), "study-stacked": (stacked(12), stacked())}
    for folder, (first, second) in runners.items():
        interrupted(partial(execute, name, plan, DATA / folder, first))
        runs = [f"composite/{arm}/seed-{seed}" for arm in ("joint", "dat") for seed in (0, 1)]
        continued(DATA / folder, lambda copy, second=second: execute(name, plan, copy, second), runs)


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(DATA / "expected", ignore_errors=True)
    for name in ("runs", *STACKS, "study", "study-stacked"):
        shutil.rmtree(DATA / name, ignore_errors=True)
    about = {
        "commit": environment._commit(),
        "torch": torch.__version__,
        "processor": environment._processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "arithmetic": arithmetic(),
    }
    (DATA / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    # The folders' own notes of where they were made are the same wherever that is.
    sys.argv = ["latebloom", "study", "study.py"]
    environment._processor, platform.release, os.cpu_count = lambda: "processor", lambda: "release", lambda: 2
    make_runs()
    make_stacks()
    make_studies()
    # Checkpoints of finished runs are of no use but in one, which can be extended.
    for file in DATA.glob("study*/**/result.json"):
        shutil.rmtree(file.parent / "checkpoints")


main()
