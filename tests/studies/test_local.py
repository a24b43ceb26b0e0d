"""Several runs in processes of their own."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import torch
from processes import descendants, living

from latebloom import run
from latebloom.engine import loop
from latebloom.engine.loop import run_stacked
from latebloom.engine.memory import fits_clearly
from latebloom.engine.outcome import Progress, TrainedRun
from latebloom.errors import InterruptedRun
from latebloom.studies import local, sockets
from latebloom.studies.local import train_all, train_in_processes
from latebloom.studies.stacks import run_in_stacks

CPU = torch.device("cpu")


def test_runs_in_processes_are_the_runs_one_would_do_alone(tiny, tmp_path):
    configs = {"joint": replace(tiny, delay=None), "dat": tiny, "other": replace(tiny, seed=4)}
    seen: dict[str, set[str]] = {name: set() for name in configs}
    observe = lambda name, progress: seen[name].add(progress.phase)  # noqa: E731
    assert train_all(configs, tmp_path, workers=2, device="cpu", observe=observe) == {}
    for name, config in configs.items():
        assert TrainedRun.load(tmp_path / name).evaluation == run(config).evaluation
        assert "done" in seen[name]


def test_stacks_in_processes_are_the_stacks_of_one_process(tiny, tmp_path):
    """As on a GPU, where several processes share it."""
    wide = replace(tiny, model=replace(tiny.model, width=16))
    configs = {
        f"{name}-{seed}": replace(one, seed=seed) for name, one in {"a": tiny, "b": wide}.items() for seed in (0, 1)
    }
    waves: list[int] = []

    def train_at_once(stacks, number):
        waves.extend(map(len, stacks))
        return train_in_processes(
            stacks, tmp_path / "at once", CPU, number, lambda name, seen: steps.__setitem__(name, seen.step)
        )

    steps: dict[str, int] = {}
    where = {"fit": lambda config, device: 4, "observe": lambda name, seen: None}
    assert run_in_stacks(configs, tmp_path / "in turn", CPU, **where) == {}
    assert run_in_stacks(configs, tmp_path / "at once", CPU, **where, at_once=2, train_at_once=train_at_once) == {}
    assert waves == [2, 2]
    assert steps == dict.fromkeys(configs, tiny.training.steps)
    for name in configs:
        one, other = (TrainedRun.load(tmp_path / folder / name).model.state_dict() for folder in ("in turn", "at once"))
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(("fit", "number"), [(7, 3), (6, 3), (4, 2), (3, 1), (1, 1)])
def test_as_many_stacks_are_trained_at_once_as_fit_into_the_memory(tiny, tmp_path, fit, number):
    """Three shapes of two runs. Those of which one fits alone, or of which no two fit, are trained in this process."""
    shapes = {width: replace(tiny, model=replace(tiny.model, width=width)) for width in (8, 16, 24)}
    configs = {f"{width}-{seed}": replace(one, seed=seed) for width, one in shapes.items() for seed in (0, 1)}
    found: list[tuple[int, int]] = []

    def train_at_once(waves, number):
        found.append((len(waves), number))
        return {}

    where = {"fit": lambda config, device: fit, "observe": lambda name, seen: None, "at_once": 3}
    assert run_in_stacks(configs, tmp_path, CPU, **where, train_at_once=train_at_once) == {}
    assert found == ([(3, number)] if number > 1 else [])
    assert len(list(tmp_path.glob("*/result.json"))) == (0 if number > 1 else 6)


def test_an_interrupted_stack_takes_its_share_of_the_memory(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    large = {f"large-{seed}": replace(tiny, seed=seed) for seed in range(5)}
    wide = replace(tiny, model=replace(tiny.model, width=16))

    def stop(name, progress):
        if progress.step >= 9:
            raise InterruptedRun("stopped by the test")

    with pytest.raises(InterruptedRun):
        run_stacked(large, tmp_path, CPU, observe=stop)
    found: list[int] = []

    def train_at_once(waves, number):
        found.append(number)
        return {}

    small = {f"small-{seed}": replace(wide, seed=seed) for seed in range(2)}
    where = {"observe": lambda name, seen: None, "at_once": 4, "train_at_once": train_at_once}
    run_in_stacks(large | small, tmp_path, CPU, **where, fit=lambda config, device: 7)
    assert found == [2]


@pytest.mark.parametrize(("workers", "expected"), [(None, 4), (2, 2), (1, 1)])
def test_on_a_gpu_four_stacks_are_trained_at_once_or_as_many_as_asked(tiny, tmp_path, monkeypatch, workers, expected):
    given: dict[str, Any] = {}
    monkeypatch.setattr(local, "choose_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(local, "run_in_stacks", lambda *words, **named: given.update(named) or {})
    assert train_all({"a": tiny}, tmp_path, workers=workers, device="cuda") == {}
    assert given["at_once"] == expected


def test_what_clearly_fits_grows_with_the_runs_the_length_and_the_vocabulary(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**30))
    most = lambda config: max(n for n in range(1, 2_000) if fits_clearly(config, torch.device("cuda"), n))  # noqa: E731
    long = replace(tiny, training=replace(tiny.training, length=8))
    assert most(tiny) > most(long) > 1
    assert most(tiny) > most(replace(tiny, task=replace(tiny.task, keys=2_000)))


def test_a_stack_that_fails_in_a_process_names_each_of_its_runs(tiny, tmp_path):
    (tmp_path / "bad").write_text("a file where the run's folder should be")
    failures = train_in_processes([{"bad": tiny, "other": replace(tiny, seed=1)}], tmp_path, CPU, 1, lambda *seen: None)
    assert failures.keys() == {"bad", "other"}
    assert "bad cannot be written" in failures["bad"]


def test_a_run_that_fails_is_reported_and_the_others_finish(tiny, tmp_path):
    (tmp_path / "bad").write_text("a file where the run's folder should be")
    failures = train_all({"bad": tiny, "good": tiny}, tmp_path, workers=1, device="cpu")
    assert failures.keys() == {"bad"}
    assert failures["bad"].startswith("out: ")
    assert "bad cannot be written" in failures["bad"]
    assert (tmp_path / "good" / "result.json").exists()


@pytest.mark.parametrize("change", ["moved", "replaced"])
def test_no_run_starts_in_a_folder_that_was_moved_or_replaced(change, tiny, tmp_path):
    folder = tmp_path / "study"

    def move(name: str, progress: Progress) -> None:
        if folder.exists() and not (tmp_path / "moved").exists():
            folder.rename(tmp_path / "moved")
            if change == "replaced":
                folder.mkdir()

    slow = replace(tiny, training=replace(tiny.training, steps=400, check_every=100))
    failures = train_all({"first": slow, "second": tiny}, folder, workers=1, device="cpu", observe=move)
    assert "moved, removed or replaced" in failures["first"]
    assert failures["second"] == f"{folder} was moved, removed or replaced before the run could start"
    assert not folder.exists() or not list(folder.iterdir())


SCRIPT = """
import sys
from pathlib import Path
from latebloom import load_config
from latebloom.errors import InterruptedRun
from latebloom.studies.local import train_all

if __name__ == "__main__":
    config = load_config(sys.argv[1])
    try:
        train_all({"a": config, "b": config}, Path(sys.argv[2]), workers=2, device="cpu")
    except InterruptedRun as stop:
        print(stop)
        sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopping_the_parent_stops_the_workers_and_keeps_what_they_reached(tiny, tmp_path, number):
    rare = 10**6 if number == signal.SIGKILL else 3  # the workers of a killed study stop before they next log
    training = replace(tiny.training, steps=1_000_000, checkpoint_every=20, log_every=rare, check_every=rare)
    endless = replace(tiny, training=training)
    (tmp_path / "config.json").write_text(json.dumps(endless.to_json()))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "config.json"), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    folders = [tmp_path / "out" / name / "checkpoints" for name in "ab"]
    while not all(list(folder.glob("step-*")) for folder in folders):
        time.sleep(0.1)
        assert process.poll() is None
    started = descendants(process.pid)
    assert len(started) >= 2
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 7
        assert "the progress is saved in" in output
    deadline = time.monotonic() + 30
    while living(started) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert living(started) == set()  # nobody trains on unseen


def test_the_folder_of_a_socket_is_removed_by_the_next_study_if_its_study_was_killed(tmp_path, monkeypatch):
    """Those of living processes and of other programs stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from latebloom.studies import sockets; "
    script += "sockets.keep_sockets_apart(); print('there', flush=True); sys.stdin.read()"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
    (tmp_path / "pymp-of-others").mkdir()
    assert len(list(tmp_path.iterdir())) == 3
    started[0].kill()
    started[0].communicate()
    settings = multiprocessing.current_process()._config  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(settings, "tempdir", None)
    monkeypatch.setattr(sockets, "Finalize", lambda *_, **__: None)
    sockets.keep_sockets_apart()
    own = Path(settings["tempdir"])
    assert own.parent == tmp_path
    left = {path.name for path in tmp_path.iterdir()} - {own.name, "pymp-of-others"}
    assert len(left) == 1
    started[1].communicate("")  # ends as a process should
    assert {path.name for path in tmp_path.iterdir()} == {own.name, "pymp-of-others"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_while_they_start_is_an_interruption(number, tiny, tmp_path):
    """As by Ctrl-C in a terminal, or when it is closed."""
    endless = replace(tiny, training=replace(tiny.training, steps=1_000_000))
    (tmp_path / "config.json").write_text(json.dumps(endless.to_json()))
    # Under nohup, SIGHUP is ignored, and processes inherit that.
    unignored = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    (tmp_path / "script.py").write_text(unignored + SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "config.json"), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:
        while len(started := descendants(process.pid)) < 2:  # the resource tracker and the fork server
            time.sleep(0.02)
            assert process.poll() is None
        os.killpg(process.pid, number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "the progress is saved in" in output
    assert errors == ""
    end = time.monotonic() + 30
    while living(started):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_that_another_process_still_trains_is_waited_for(tiny, tmp_path):
    """As by the workers of a study that was killed a moment ago, which save before they end."""
    lock = "import fcntl, pathlib, sys, time\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
    (tmp_path / "a").mkdir()
    command = [sys.executable, "-c", lock + "print('locked', flush=True)\ntime.sleep(2)", str(tmp_path / "a" / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert train_all({"a": tiny}, tmp_path, workers=1, device="cpu") == {}
    assert (tmp_path / "a" / "result.json").exists()
