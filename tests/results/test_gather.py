"""Runs to report on, wherever they are."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from latebloom import run
from latebloom.cli import main
from latebloom.engine.files import write_json
from latebloom.engine.folder import RunFolder
from latebloom.errors import CheckpointError, InterruptedRun, ResultsError
from latebloom.results import gather as gather_module
from latebloom.results.gather import gather
from latebloom.studies.execute import execute
from latebloom.studies.plan import Arm, Plan


@pytest.fixture
def quick(tiny):
    return replace(tiny, training=replace(tiny.training, steps=8, check_every=4), delay=None)


def test_runs_that_differ_in_their_seed_alone_are_one_arm(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wide = replace(quick, model=replace(quick.model, width=16))
    narrow, other, again = (Path(name) for name in ("narrow", "wide", "again"))
    for folder, config in ((narrow, quick), (other, wide), (again, replace(quick, seed=7))):
        run(config, folder, device="cpu")
    found = gather([narrow, other, again])
    assert [(one.study, one.task, one.arm, one.seed) for one in found] == [
        ("runs", "composite", "narrow", quick.seed),
        ("runs", "composite", "wide", quick.seed),
        ("runs", "composite", "narrow", 7),
    ]
    assert all(one.evaluation for one in found)
    assert [one.arm for one in gather([narrow, again])] == ["narrow", "narrow"]  # both stand beside the wide one
    with pytest.raises(ResultsError, match=r"the run .*narrow is given twice"):
        gather([narrow, other, again, other / ".." / "narrow"])
    shutil.copytree(narrow, "copy")
    with pytest.raises(ResultsError, match=r"narrow and .*copy hold the same run; give one of them"):
        gather([narrow, Path("copy")])
    shutil.rmtree("copy")


def test_a_folder_of_runs_is_the_runs_in_it_and_an_arm_that_fills_one_is_called_after_it(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        run(replace(quick, seed=seed), Path("runs", "many", f"seed-{seed}"), device="cpu")
    Path("runs", "many", "summary.json").write_text("{}")
    run(replace(quick, model=replace(quick.model, width=16)), Path("runs", "wide"), device="cpu")
    found = gather([Path("runs/many"), Path("runs/wide")])
    assert [(one.arm, one.seed) for one in found] == [("many", 0), ("many", 1), ("many", 2), ("wide", quick.seed)]
    some = gather([Path("runs/many/seed-0"), Path("runs/many/seed-2")])
    assert [(one.arm, one.seed) for one in some] == [("many", 0), ("many", 2)]
    beside = Path("runs", "many", "seed-1", "config.json")
    before = beside.read_text()
    beside.write_text(
        before.replace('"steps"', '"stairs"')
    )  # a run that this version cannot read, and that is not asked for
    some = gather([Path("runs/many/seed-0"), Path("runs/many/seed-2")])
    assert [one.arm for one in some] == ["seed-0", "seed-0"]
    beside.write_text(before)
    assert [one.arm for one in gather([Path("runs/many/seed-0"), Path("runs/wide")])] == ["many/seed-0", "wide"]
    Path("by-link").symlink_to(Path("runs", "wide"))
    assert [one.arm for one in gather([Path("by-link")])] == ["by-link"]
    with pytest.raises(ResultsError, match="seed-0 is given twice, by itself or with the folder around it"):
        gather([Path("runs/many"), Path("runs/many/seed-0")])
    monkeypatch.chdir(tmp_path / "runs" / "wide")
    assert [one.arm for one in gather([Path()])] == ["wide"]


def test_a_run_that_was_stopped_is_shown_as_missing(quick, tmp_path):
    def stop(seen):
        if seen.step >= 4:
            raise InterruptedRun("stopped by the test")

    with pytest.raises(InterruptedRun):
        run(quick, tmp_path / "cut", device="cpu", observe=stop)
    (found,) = gather([tmp_path / "cut"])
    assert found.evaluation is None
    assert found.failure == "stopped before its end"


def test_a_studys_folder_is_its_results_and_the_runs_on_which_it_chose(quick, tmp_path):
    def train(configs, folder):
        for name, config in configs.items():
            run(config, folder / name, device="cpu")
        return {}

    slow = replace(quick, training=replace(quick.training, full=replace(quick.training.full, learning_rate=1e-9)))
    plan = Plan([Arm("joint", quick, (quick, slow))], seeds=(0,), tuning_seeds=(9,))
    execute("mine", plan, tmp_path / "study", train)
    run(quick, tmp_path / "alone", device="cpu")
    found = gather([tmp_path / "alone", tmp_path / "study"])
    assert [(one.study, one.arm) for one in found] == [
        ("mine", "joint"),
        ("mine, tuning", "joint, choice 0"),
        ("mine, tuning", "joint, choice 1"),
        ("runs", "alone"),
    ]
    assert [one.study for one in gather([tmp_path / "study" / "results.parquet", tmp_path / "alone"])] == [
        "mine",
        "runs",
    ]


def test_two_runs_are_set_side_by_side_by_the_command(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    run(quick, tmp_path / "first", device="cpu")
    run(replace(quick, model=replace(quick.model, width=16)), tmp_path / "second", device="cpu")
    main(["report", "first", "second"])
    said = capsys.readouterr().out
    assert "first" in said
    assert "second" in said
    page = (tmp_path / "report" / "index.html").read_text()
    assert "model.width=16" in page  # what they differ in


def test_a_study_that_was_killed_before_its_first_result_is_described(quick, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["latebloom", "study", "my study.py"])

    def killed(configs, folder):
        finished, interrupted, _ = configs
        for name in (finished, interrupted):
            run(configs[name], folder / name, device="cpu")
        (folder / interrupted / "result.json").unlink()
        raise SystemExit

    with pytest.raises(SystemExit):
        execute("mine", Plan([Arm("a", quick)], range(3)), tmp_path, killed)
    (tmp_path / "results.parquet").unlink()  # a process that is killed writes none
    with pytest.raises(ResultsError) as refused:
        gather([tmp_path])
    assert str(refused.value) == (
        f"results: {tmp_path} is a study without results yet: 2 runs began and 1 finished; continue with: "
        "latebloom study 'my study.py'"
    )
    shutil.rmtree(tmp_path / "composite")
    with pytest.raises(ResultsError, match="0 runs began and 0 finished; continue with the command that began it"):
        gather([tmp_path])


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(ResultsError, match="holds neither results nor runs; give a results file, the folder"):
        gather([tmp_path])
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(
        ResultsError, match=r"is not the folder of a study; name the files in it .*, such as .*mine.parquet$"
    ):
        gather([tmp_path])


def test_many_arms_in_one_folder_are_looked_at_once(quick, tmp_path, monkeypatch):
    """Not once for each arm: with 100 arms of 100 seeds that would be a million configurations to read."""
    for width in (8, 16, 24):
        config = replace(quick, model=replace(quick.model, width=width))
        for seed in (0, 1):
            folder = RunFolder(tmp_path / f"{width}-{seed}")
            folder.path.mkdir()
            write_json(folder.config_file, replace(config, seed=seed).to_json())
    looked, look = [], gather_module._holds_one_arm
    monkeypatch.setattr(gather_module, "_holds_one_arm", lambda folder: looked.append(folder) or look(folder))
    assert [one.arm for one in gather([tmp_path])] == [f"{width}-0" for width in (16, 24, 8) for _ in range(2)]
    assert looked == [tmp_path]


@pytest.mark.parametrize("content", ["", "{}", None], ids=["empty", "of something else", "missing"])
def test_a_run_whose_configuration_is_damaged_is_refused_and_not_left_out(content, quick, tmp_path):
    for seed in range(2):
        run(replace(quick, seed=seed), tmp_path / f"seed-{seed}", device="cpu")
    file = tmp_path / "seed-1" / "config.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=r"its config.json is (damaged|missing)"):
        gather([tmp_path])
