"""What a person sees of a study while it runs."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from latebloom.engine.outcome import Progress
from latebloom.engine.pause import Stop
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import Evaluation
from latebloom.progress import RunProgress
from latebloom.studies.plan import Stage

STEPS = 60
RUNS = [f"composite/{arm}/seed-{seed}" for arm in ("joint", "dat") for seed in range(3)]
REPORTED = Stage("the runs to report")


def done(beyond: float) -> Progress:
    return Progress(STEPS, STEPS, "done", loss=0.5, accuracy_beyond=beyond, tested=1.0)


def at_step(step: int, **more) -> Progress:
    return Progress(step, STEPS, "full", loss=0.7, **more)


@pytest.fixture
def clock(monkeypatch):
    """The time, to be set."""
    seconds = [0.0]
    monkeypatch.setattr("latebloom.progress.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture
def of(tiny):
    """Configurations by name."""

    def of(names, steps=STEPS):
        return dict.fromkeys(names, replace(tiny, training=replace(tiny.training, steps=steps)))

    return of


def begin(folder: Path) -> None:
    """A run that was begun before."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def finish(folder: Path, beyond: float) -> None:
    """A run that was finished before, with an accuracy at three times its training length."""
    begin(folder)
    evaluation = Evaluation(5, (Count(15, 100, round(100 * beyond), {"sum": 100}),), {"sum": 0.1}, 0.1)
    (folder / "evaluation.json").write_text(json.dumps(evaluation.to_json()))
    (folder / "result.json").write_text("{}")


@pytest.fixture
def log(clock):
    """A study's bar where there is no terminal, and the lines that it has written."""
    written = StringIO()
    with RunProgress(Console(file=written, width=80)) as bar:
        yield bar, lambda: written.getvalue().splitlines()


def a_study_in_its_midst(bar: RunProgress, configs, folder: Path) -> None:
    """One run finished before, one finished now, one that goes on, one that failed, two that wait."""
    finish(folder / RUNS[0], beyond=0.15)
    bar.stage = REPORTED
    bar.expect(configs, folder)
    bar.show(RUNS[1], done(0.25))
    bar.show(RUNS[3], at_step(30, accuracy_beyond=0.9))
    bar.show(RUNS[4], Progress.of_failed(STEPS))


def test_a_log_says_how_many_are_done_running_and_failed_and_how_long_the_rest_takes(log, of, tmp_path):
    bar, lines = log
    a_study_in_its_midst(bar, of(RUNS), tmp_path)
    first, *_, last = lines()
    # What was finished before says nothing of the pace, but it counts among the leaders.
    assert first == "6 runs: 1 done, 0 running, the runs to report"
    assert last.startswith("6 runs: 2 done, 1 running, 1 failed, about 0:00:00 left, the runs to report: ")
    assert last.endswith("step 30 of 60, 90% at 3x: composite/dat, 20% at 3x: composite/joint")


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_shows_all_of_it(width, of, tmp_path):
    written = StringIO()
    with RunProgress(Console(file=written, width=width, force_terminal=True, color_system=None)) as bar:
        a_study_in_its_midst(bar, of(RUNS), tmp_path)
    stand, stage, *leaders = written.getvalue().replace("\x1b[2K", "").split("\r")[-1].splitlines()[-5:-1]
    assert "6 runs" in stand
    assert "2 done, 1 running, 1 failed" in stand
    assert stage.startswith("about 0:00:00 left, the runs to report: step 30 of 60")
    assert [leader.strip() for leader in leaders] == ["90% at 3x: composite/dat", "20% at 3x: composite/joint"]


def test_hundreds_of_runs_with_long_names_fit_a_terminal_of_eighty_columns(clock, of, tmp_path):
    runs = [f"tuning/composite/dat/choice-{k}/seed-{seed}" for k in range(32) for seed in range(25)]
    setting = "composite/joint (asked late) scores=log_n learning_rate=0.012 state_noise=0.3 weigh=positions"
    names = {f"tuning/composite/dat/choice-{k}": setting for k in range(32)}
    written = StringIO()
    with RunProgress(Console(file=written, width=80, force_terminal=True, color_system=None)) as bar:
        bar.stage = Stage("choosing settings, first of two rounds", [STEPS] * 200, names)
        bar.expect(of(runs), tmp_path)
        clock[0] = 40_000.0
        for run in runs[:123]:
            bar.show(run, done(0.5))
        for run in runs[123:140]:
            bar.show(run, Progress.of_failed(STEPS))
    stand, stage, *leaders = written.getvalue().replace("\x1b[2K", "").split("\r")[-1].splitlines()[-5:-1]
    assert "1000 runs" in stand
    assert "123 done, 0 running, 17 failed" in stand
    assert "…" not in stand
    assert stage.startswith("about 3 days, 5:41:15 left, choosing settings, first of two rounds")
    assert all(leader.startswith("50% at 3x: composite/joint (asked late) scores=log_n") for leader in leaders)


def test_a_finished_run_that_is_extended_is_not_done(log, clock, of, tmp_path):
    bar, lines = log
    finish(tmp_path / "a", beyond=0.5)
    (tmp_path / "a" / "result.json").write_text(json.dumps({"steps": STEPS // 2}))
    bar.expect(of("a"), tmp_path)
    bar.show("a", at_step(30))
    clock[0] = 10.0
    bar.show("a", at_step(45))
    assert "about 0:00:14 left, a: step 45/60 full" in lines()[-1]  # the first half is not its pace


def test_runs_that_failed_count_as_over(log, of, tmp_path):
    bar, lines = log
    bar.expect(of(["a", "b"]), tmp_path)
    bar.show("a", done(0.5))
    bar.show("b", Progress.of_failed(STEPS))
    assert lines()[-1].startswith("2 runs: 1 done, 0 running, 1 failed")
    assert "left" not in lines()[-1]


def test_one_bar_goes_through_all_rounds_and_the_time_left_is_that_of_the_whole_study(log, clock, of, tmp_path):
    bar, lines = log
    choices = [f"tuning/composite/dat/choice-{k}/seed-9" for k in range(2)]
    names = {"tuning/composite/dat/choice-0": "composite/dat learning_rate=0.01"}
    bar.stage = Stage("choosing settings", [STEPS] * 6, names)
    bar.expect(of(choices), tmp_path)
    clock[0] = 10.0
    bar.show(choices[0], done(0.25))
    clock[0] = 20.0
    bar.show(choices[1], done(0.15))
    bar.stage = REPORTED
    bar.expect(of(RUNS), tmp_path)
    clock[0] = 30.0
    bar.show(RUNS[0], done(0.9))
    began, first, second, final, last = lines()
    assert began == "8 runs: 0 done, 0 running, choosing settings"  # no pace yet
    assert first.startswith("8 runs: 1 done, 0 running, about 0:01:10 left, choosing settings")
    assert first.endswith("25% at 3x: composite/dat learning_rate=0.01")
    assert "2 done, 0 running, about 0:01:00 left" in second
    assert final == "8 runs: 2 done, 0 running, about 0:01:00 left, the runs to report"
    assert last.startswith("8 runs: 3 done, 0 running, about 0:00:50 left, the runs to report")
    assert last.endswith("90% at 3x: composite/joint")  # what the choice was among is over


def test_the_time_left_goes_on_from_round_to_round(log, clock, of, tmp_path):
    """Four choices for 20 of 60 steps, two of them to the end, and four runs to report: 400 steps at two a second."""
    bar, lines = log
    choices = [f"tuning/composite/dat/choice-{k}/seed-9" for k in range(4)]
    bar.stage = Stage("first of two rounds", [STEPS] * 4, going_on=2 * 40)
    bar.expect(of(choices), tmp_path, dict.fromkeys(choices, Stop(20)))
    for name in choices:
        begin(tmp_path / name)
        clock[0] += 10.0
        bar.show(name, Progress(20, STEPS, "paused", tested=1.0))
    assert "about 0:02:40 left" in lines()[-1]
    bar.stage = Stage("second round", [STEPS] * 4)
    bar.expect(of(choices[:2]), tmp_path)
    assert lines()[-1] == "8 runs: 2 done, 0 running, about 0:02:40 left, second round"
    share = bar._bars.tasks[0].completed
    for name in choices[:2]:
        bar.show(name, Progress(20, STEPS, "full"))  # what they bring from their checkpoints is not counted twice
    assert bar._bars.tasks[0].completed == share == pytest.approx(8 * 80 / 400)
    for name in choices[:2]:
        clock[0] += 20.0
        bar.show(name, done(0.5))
    assert "4 done, 0 running, about 0:02:00 left" in lines()[-1]


def test_fewer_runs_than_were_planned_may_follow(log, of, tmp_path):
    bar, lines = log
    bar.stage = Stage("choosing settings", [STEPS] * 4)
    bar.expect(of(["a", "b"]), tmp_path)
    bar.show("a", done(0.5))
    bar.show("b", Progress.of_failed(STEPS))
    bar.stage = REPORTED
    bar.expect(of(["c"]), tmp_path)  # all but one took the choice that failed
    bar.show("c", done(0.5))
    assert lines()[0].startswith("6 runs: 0 done")
    assert lines()[-1].startswith("3 runs: 2 done, 0 running, 1 failed, the runs to report")


def test_runs_weigh_by_their_steps(log, clock, of, tmp_path):
    bar, lines = log
    bar.expect(of(["short"]) | of(["long"], 3 * STEPS), tmp_path)
    clock[0] = 10.0
    bar.show("short", done(0.5))
    assert "about 0:00:30 left" in lines()[-1]


def test_what_a_run_brings_from_a_checkpoint_is_not_its_pace(log, clock, of, tmp_path):
    bar, lines = log
    begin(tmp_path / "a")
    bar.expect(of(["a"]), tmp_path)
    bar.show("a", at_step(20))
    clock[0] = 10.0
    bar.show("a", at_step(40))
    clock[0] = 15.0
    bar.show("a", at_step(50))
    assert "about 0:00:08 left" in lines()[-1]  # 30 steps took 15 seconds; ten, and the evaluation, are left


def test_what_failed_is_not_a_pace(log, clock, of, tmp_path):
    bar, lines = log
    bar.expect(of("abcd"), tmp_path)
    clock[0] = 1.0
    bar.show("a", Progress.of_failed(STEPS))
    bar.show("b", Progress.of_failed(STEPS))
    assert "left" not in lines()[-1]
    clock[0] = 10.0
    bar.show("c", done(0.5))
    assert "about 0:00:10 left" in lines()[-1]


def test_members_of_a_stack_that_were_done_stay_done(log, clock, of, tmp_path):
    bar, lines = log
    finish(tmp_path / "a", beyond=0.5)
    bar.expect(of("ab"), tmp_path)
    clock[0] = 1.0
    bar.show("a", at_step(30))
    bar.show("b", at_step(60))
    assert lines()[-1].startswith("2 runs: 1 done, 1 running")


def test_a_run_that_starts_over_does_not_repeat_the_log(log, clock, of, tmp_path):
    bar, lines = log
    bar.expect(of("a"), tmp_path)
    for _ in range(3):
        for step in range(0, STEPS, 5):
            clock[0] += 1.0
            bar.show("a", at_step(step))
    assert len(lines()) == len(set(lines())) <= 10


def test_leaders_are_those_that_are_compared_with_each_other(log, clock, of, tmp_path):
    """The choices of an arm, over both rounds, and not those of another task, however good they are."""
    bar, lines = log
    first = [f"tuning/{arm}/choice-{k}/seed-8" for arm in ("composite/dat", "recall/dat") for k in range(2)]
    bar.stage = Stage("choosing settings, first of two rounds", [STEPS])
    bar.expect(of(first), tmp_path)
    for run, beyond in zip(first, (0.5, 0.4, 1.0, 1.0), strict=True):
        bar.show(run, done(beyond))
    bar.stage = Stage("choosing settings, second round")
    bar.expect(of(["tuning/composite/dat/choice-0/seed-9"]), tmp_path)
    clock[0] = 1.0
    bar.show("tuning/composite/dat/choice-0/seed-9", done(0.1))
    assert lines()[-1].endswith("40% at 3x: tuning/composite/dat/choice-1, 30% at 3x: tuning/composite/dat/choice-0")


def test_while_something_is_withheld_a_run_does_not_lead(log, clock, of, tmp_path):
    bar, lines = log
    bar.expect(of(RUNS), tmp_path)
    bar.show(RUNS[0], done(0.3))
    clock[0] = 1.0
    bar.show(RUNS[3], Progress(59, STEPS, "delayed", accuracy_beyond=1.0))
    assert lines()[-1].endswith("step 59 of 60, 30% at 3x: composite/joint")


def test_a_few_runs_have_a_line_each_with_the_time_left(log, clock, of, tmp_path):
    bar, lines = log
    runs = of(["joint/seed-0", "dat/seed-0"])
    bar.expect(runs, tmp_path)
    clock[0] = 10.0
    bar.show("joint/seed-0", Progress(30, STEPS, "full", loss=0.7, accuracy=1.0, accuracy_beyond=0.25))
    clock[0] = 20.0
    bar.show("dat/seed-0", Progress(30, STEPS, "delayed", loss=0.6, accuracy=1.0, accuracy_beyond=0.75))
    length = next(iter(runs.values())).training.length
    assert lines()[-1] == (
        "2 runs: 0 done, 2 running, about 0:00:24 left, "
        f"joint: step 30/60 full, acc@{3 * length} 25%, acc@{length} 100%, loss 0.700, "
        f"dat: step 30/60 delayed, sum@{3 * length} 75%, sum@{length} 100%, loss 0.600"
    )


def test_the_log_of_a_run_has_a_line_for_each_phase_and_tenth_with_the_time_left(log, clock, of):
    bar, lines = log
    bar.expect(of(["run"]), None)
    for step in range(STEPS + 1):
        clock[0] += 1.0
        bar.show("run", Progress(step, STEPS, "delayed" if step < 5 else "full"))
    assert lines()[0] == "1 run: 0 done, 1 running, run: step 0/60 delayed"
    assert "1 run: 0 done, 1 running, about 0:01:14 left, run: step 5/60 full" in lines()
    assert 10 <= len(lines()) <= 13
    assert all("left" in line for line in lines()[1:])


def test_the_log_of_a_long_study_has_a_line_at_least_every_five_minutes(log, clock, of):
    """A tenth of a long study can be an hour."""
    bar, lines = log
    bar.expect(of(RUNS), None)
    for step in range(5):
        clock[0] += 200.0
        bar.show(RUNS[0], at_step(step))
    seen = [line.partition("step ")[2].split()[0] for line in lines() if "step " in line]
    assert seen == ["1", "3"]


@pytest.mark.parametrize(("width", "loss"), [(44, False), (80, True), (120, True)])
def test_the_line_of_a_run_leaves_out_what_does_not_fit(width, loss, of):
    written = StringIO()
    with RunProgress(Console(file=written, width=width, force_terminal=True, color_system=None)) as bar:
        bar.expect(of(["joint", "dat"], 20_000), None)
        bar.show("joint", Progress(12_000, 20_000, "delayed", loss=12.5, accuracy=1.0, accuracy_beyond=1.0))
    text = written.getvalue()
    assert "joint: step 12000/20000 delayed" in text
    assert ("loss 12.500" in text) is loss
    assert "…" not in text


def test_the_time_left_is_told_when_a_hundredth_of_what_is_left_to_do_is_done(log, clock, of, tmp_path):
    bar, _ = log
    for number in range(998):
        finish(tmp_path / f"before-{number}", beyond=0.5)
    bar.expect(of([f"before-{number}" for number in range(998)] + ["a", "b"]), tmp_path)
    clock[0] = 1.0
    bar.show("a", at_step(1))
    assert "left" not in bar._bars.lines[0]
    clock[0] = 10.0
    bar.show("a", at_step(20))
    assert "about 0:00:57 left" in bar._bars.lines[0]


def test_thousands_of_runs_are_drawn_now_and_then_and_at_the_end(log, of, monkeypatch):
    """Each drawing looks at every run, so that one for each end of a run would take minutes."""
    bar, lines = log
    drawn, draw = [], RunProgress._draw
    monkeypatch.setattr(RunProgress, "_draw", lambda self, last="": (drawn.append(last), draw(self, last)))
    names = [f"composite/dat/seed-{seed}" for seed in range(3_000)]
    bar.expect(of(names), None)
    for name in names:
        bar.show(name, done(0.5))
    assert len(drawn) < 10
    assert lines()[-1] == "3000 runs: 3000 done, 0 running, 50% at 3x: composite/dat"


def test_what_was_not_drawn_yet_is_drawn_when_the_bar_ends(of):
    written = StringIO()
    with RunProgress(Console(file=written, width=80)) as bar:
        names = [f"composite/dat/seed-{seed}" for seed in range(200)]
        bar.expect(of(names), None)
        bar.show(names[0], done(0.5))
        for name in names[1:150]:
            bar.show(name, done(0.5))
    assert written.getvalue().splitlines()[-1].startswith("200 runs: 150 done, 0 running")
