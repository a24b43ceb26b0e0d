"""What a person sees of a study while it runs."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from latebloom.progress import StudyBar
from latebloom.training.outcome import Progress

RUNS = [f"composite/{arm}/seed-{seed}" for arm in ("joint", "dat") for seed in range(3)]


def a_study_in_its_midst(console: Console, folder: Path) -> None:
    """One run finished before, one finished now, one that goes on, one that failed, two that wait."""
    (folder / RUNS[0]).mkdir(parents=True)
    (folder / RUNS[0] / "result.json").write_text("{}")
    with StudyBar(console) as bar:
        bar.expect(RUNS, folder, "the runs to report")
        bar.show(RUNS[1], Progress(60, 60, "done", loss=0.5, accuracy_beyond=0.25, tested=1.0))
        bar.show(RUNS[3], Progress(30, 60, "full", loss=0.7, accuracy_beyond=0.9))
        bar.show(RUNS[4], Progress.of_failed(60))


def test_a_log_says_how_many_are_done_running_and_failed_and_how_long_the_rest_takes(tmp_path):
    written = StringIO()
    a_study_in_its_midst(Console(file=written, width=80), tmp_path)
    first, *_, last = written.getvalue().splitlines()
    assert first == "6 runs: 1 done, 0 running, the runs to report"  # what was finished before says nothing of the pace
    assert last.startswith("6 runs: 2 done, 1 running, 1 failed, about 0:00:00 left, the runs to report: ")
    assert "step 0/60, failed, median loss" in last
    assert last.endswith("beyond: composite/dat 90%, composite/joint 25%")


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_shows_all_of_it(width, tmp_path):
    written = StringIO()
    a_study_in_its_midst(Console(file=written, width=width, force_terminal=True, color_system=None), tmp_path)
    bar, step, leaders = written.getvalue().replace("\x1b[2K", "").split("\r")[-1].splitlines()[-4:-1]
    assert "6 runs" in bar
    assert "2 done, 1 running, 1 failed" in bar
    assert "left" in bar
    assert step.split(",")[0] == "the runs to report: step 0/60"
    assert leaders.strip() == "beyond: composite/dat 90%, composite/joint 25%"


def test_runs_that_failed_count_as_over(tmp_path):
    written = StringIO()
    with StudyBar(Console(file=written, width=80)) as bar:
        bar.expect(["a", "b"], tmp_path)
        bar.show("a", Progress(60, 60, "done", tested=1.0))
        bar.show("b", Progress.of_failed(60))
    last = written.getvalue().splitlines()[-1]
    assert last.startswith("2 runs: 1 done, 0 running, 1 failed, step")
    assert "left" not in last


def test_one_bar_goes_through_all_rounds_and_the_time_left_is_that_of_the_whole_study(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("latebloom.progress.time.monotonic", lambda: clock[0])
    choices = [f"tuning/composite/dat/choice-{k}/seed-9" for k in range(2)]
    called = {"tuning/composite/dat/choice-0": "composite/dat learning_rate=0.01"}
    written = StringIO()
    with StudyBar(Console(file=written, width=80)) as bar:
        bar.expect(choices, tmp_path, "choosing settings", later=6, called=called)
        clock[0] = 10.0
        bar.show(choices[0], Progress(60, 60, "done", loss=0.5, accuracy_beyond=0.25, tested=1.0))
        clock[0] = 20.0
        bar.show(choices[1], Progress(60, 60, "done", loss=0.5, accuracy_beyond=0.15, tested=1.0))
        bar.expect(RUNS, tmp_path, "the runs to report")
        clock[0] = 30.0
        bar.show(RUNS[0], Progress(60, 60, "done", loss=0.5, accuracy_beyond=0.9, tested=1.0))
    began, first, second, final, last = written.getvalue().splitlines()
    assert began == "8 runs: 0 done, 0 running, choosing settings"  # no pace yet
    assert first.startswith("8 runs: 1 done, 0 running, about 0:01:10 left, choosing settings: step 60/60")
    assert first.endswith("beyond: composite/dat learning_rate=0.01 25%")
    assert "2 done, 0 running, about 0:01:00 left" in second
    assert final == "8 runs: 2 done, 0 running, about 0:01:00 left, the runs to report"
    assert last.startswith("8 runs: 3 done, 0 running, about 0:00:50 left, the runs to report: step 60/60")
    assert last.endswith("beyond: composite/joint 90%")  # what the choice was among is over
