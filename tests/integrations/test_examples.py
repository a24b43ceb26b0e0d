"""The example as a user runs it: what it prints, what it writes, and that it continues."""

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from switching import same, weights

from latebloom.evaluation import Count, Evaluation

EXAMPLE = Path(__file__).parents[2] / "examples" / "olmo_hybrid.py"
SMALL = ["--steps", "3", "--sequences", "2"]


def example(folder: Path, *words: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what a call prints and the runs in its results file."""
    ran = subprocess.run([sys.executable, str(EXAMPLE), *SMALL, *words], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, json.loads((folder / "runs" / "olmo-hybrid.json").read_text())["runs"]


def test_the_olmo_hybrid_trains_both_arms_and_continues(tmp_path):
    printed, runs = example(tmp_path)
    assert [(run["arm"], run["seed"], run["switch_step"]) for run in runs] == [("joint", 10, None), ("dat", 10, 1)]
    assert all(row["sequences"] == 2 for run in runs for row in run["evaluation"]["lengths"])
    assert "joint training     0.006  10 " in printed
    assert "delayed attention  0.004  10 " in printed
    assert (tmp_path / "runs" / "olmo-hybrid.png").read_bytes().startswith(b"\x89PNG")

    again, more = example(tmp_path, "--seeds", "2", "--processes", "2")
    assert again.count("is in runs/olmo-hybrid.json") == 2
    assert more[:2] == runs
    assert {(run["arm"], run["seed"]) for run in more[2:]} == {("joint", 11), ("dat", 11)}


KILLED_AT_STEP_7 = """
import os
from pathlib import Path
from runpy import run_path

def kill(self, args, state, *_, **parts):
    if state.global_step == 7:
        os.kill(os.getpid(), 9)

names = run_path({example!r})
names["LogWithName"].on_step_end = kill
names["train"](names["Job"](**{job!r}), Path({folder!r}))
"""


def interrupt(self: Any, args: Any, state: Any, *_: Any, **parts: Any) -> None:
    if state.global_step == 7:
        raise KeyboardInterrupt


@pytest.mark.parametrize("arm", ["joint", "dat"])
def test_a_run_that_was_killed_continues_bit_for_bit(tmp_path, monkeypatch, arm):
    names = run_path(str(EXAMPLE))
    train, trained = names["train"], []
    build = train.__globals__["build_model"]
    train.__globals__["build_model"] = lambda *settings: trained.append(build(*settings)) or trained[-1]
    job = names["Job"](arm=arm, seed=3, learning_rate=4e-3, steps=10, sequences=2, rotary=True)
    if arm == "dat":
        killed = KILLED_AT_STEP_7.format(example=str(EXAMPLE), job=asdict(job), folder=str(tmp_path / "killed"))
        ran = subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == -signal.SIGKILL, ran.stderr
    else:  # joint training by Ctrl-C, because a process takes seconds to start
        monkeypatch.setattr(names["LogWithName"], "on_step_end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(job, tmp_path / "killed")
        monkeypatch.undo()
        trained.clear()
    (folder,) = (tmp_path / "killed").iterdir()
    assert {path.name for path in folder.iterdir()} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    (folder / "checkpoint-8").mkdir()  # as one is that it was writing
    with pytest.warns(UserWarning, match="Trainer left .* weights as they were"):
        resumed = train(job, tmp_path / "killed")
    whole = train(job, tmp_path / "whole")
    assert same(weights(trained[0]), weights(trained[1]))
    assert resumed["evaluation"] == whole["evaluation"]
    assert resumed["switch_step"] == whole["switch_step"] == (3 if arm == "dat" else None)
    assert not folder.exists()


def test_a_study_takes_the_rate_with_the_highest_accuracy_at_three_times_the_length():
    names = run_path(str(EXAMPLE))
    right = {
        ("joint", 2e-3): 5,
        ("joint", 4e-3): 3,
        ("joint", 6e-3): 4,
        ("dat", 2e-3): 3,
        ("dat", 4e-3): 3,
        ("dat", 6e-3): 9,
    }

    def found(correct: int) -> Evaluation:
        counts = (Count(16, 10, 10 - correct, {"sum": 0, "recall": 0}), Count(48, 10, correct, {"sum": 0, "recall": 0}))
        return Evaluation(16, counts, {"sum": 0.5, "recall": 0.125}, 0.0625)

    tried = {
        names["Job"](arm=arm, learning_rate=rate, seed=seed, steps=1, sequences=10, rotary=True): found(
            correct + seed - 100
        )
        for (arm, rate), correct in right.items()
        for seed in (100, 101)
    }
    assert [names["best_rate"](arm, tried) for arm in ("joint", "dat")] == [2e-3, 6e-3]
