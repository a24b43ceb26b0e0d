"""The demo, in small: everything it promises but the numbers, which the slow test checks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import latebloom

SMALL = [
    "training.steps=30", "delay.until.step=15", "model.width=16", "model.blocks=1", "training.full.batch_size=8",
    "training.delayed.batch_size=8", "evaluation.sequences=32", "training.checkpoint_every=10",
]  # fmt: skip


def demo(*words: str, cwd: Path, timeout: int = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "latebloom", "demo", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=True)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return demo(*SMALL, cwd=folder), folder / "demo"


def test_the_summary_has_what_it_promises(ran):
    summary = json.loads((ran[1] / "summary.json").read_text())
    assert [run["name"] for run in summary["runs"]] == ["joint", "dat"]
    for run in summary["runs"]:
        assert run["training_length"] == 25
        assert run["steps"] == 30
        assert run["seed"] == 0
        assert run["parameters"] > 0
        assert run["seconds"] > 0
        assert run["reach"] >= 0
        for answer in ("both", "sum", "recall"):
            assert {"25", "50", "75", "100", "200"} <= set(run["accuracy"][answer])
            assert all(0 <= level <= 1 for level in run["accuracy"][answer].values())
        assert all(run["accuracy"]["both"][n] <= run["accuracy"]["sum"][n] for n in run["accuracy"]["sum"])
    assert summary["runs"][0]["switch_step"] is None
    assert summary["runs"][1]["switch_step"] == 15


def test_it_says_what_was_trained_and_what_was_seen(ran):
    output, folder = ran
    assert "width 16, 30 steps, trained on lengths 2 to 25; smaller than the paper's" in output.stdout
    assert "Note: training.delayed.warmup: a warm-up of 200 steps in a phase of 15 ends at" in output.stdout
    assert "all answers right, by length:" in output.stdout
    assert "this is not the expected result" in output.stdout
    assert json.loads((folder / "summary.json").read_text())["seen"] in output.stdout
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "accuracy.svg").exists()
    assert "this is not the expected result" in (folder / "index.html").read_text()


def test_a_second_call_shows_the_finished_runs_at_once(ran):
    first, folder = ran
    before = (folder / "dat" / "seed-0" / "result.json").stat().st_mtime_ns
    second = demo(*SMALL, cwd=folder.parent)
    assert (folder / "dat" / "seed-0" / "result.json").stat().st_mtime_ns == before
    assert first.stdout.splitlines()[-3:] == second.stdout.splitlines()[-3:]


REFUSED = {
    "evaluation.multiples=[1,2]": "evaluation.multiples: [1.0, 2.0] leave out 1 or 3",
    "delay=null": "delay: the demo compares joint training with a delay",
    "training.steps=40": "out: demo/joint/seed-0 holds a run with other settings (training.steps: 30 -> 40); choose",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_it_could_not_show_in_the_end_is_refused_at_the_start(ran, override):
    refused = latebloom("demo", *SMALL, override, cwd=ran[1].parent)
    assert refused.returncode == 2
    assert REFUSED[override] in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_the_setting_is_that_of_the_runs():

    from latebloom.demo import demo_configs, setting

    plain = demo_configs(0)["dat"]
    assert "Token shift: the keys of attention see one token back" in setting(plain)
    assert "the recall loss starts at the switch" in setting(plain)
    other = demo_configs(0, ["model.attention.look_back=false", "delay.withhold=[]"])["dat"]
    assert "Token shift" not in setting(other)
    assert "recall loss" not in setting(other)


def test_the_demo_is_a_study_that_the_report_reads(ran, tmp_path):
    from latebloom.results.gather import gather

    records = gather([ran[1]])
    assert [(one.study, one.arm, one.seed, one.failure) for one in records] == [
        ("demo", "joint", 0, None),
        ("demo", "dat", 0, None),
    ]


def test_the_folder_of_an_older_demo_is_refused(tmp_path):
    (tmp_path / "demo" / "joint").mkdir(parents=True)
    (tmp_path / "demo" / "joint" / "config.json").write_text("{}")
    refused = latebloom("demo", *SMALL, cwd=tmp_path)
    assert refused.returncode == 2
    assert "out: demo holds a demo of an earlier version of latebloom; choose another with --out" in refused.stderr


@pytest.mark.slow
def test_the_demo_shows_the_cliff_and_that_delayed_attention_avoids_it(tmp_path):
    import time

    start = time.monotonic()
    demo(cwd=tmp_path, timeout=600)
    assert time.monotonic() - start < 300
    joint, dat = json.loads((tmp_path / "demo" / "summary.json").read_text())["runs"]
    assert dat["accuracy"]["both"]["75"] >= 0.9
    assert joint["accuracy"]["both"]["75"] < 0.5
    assert joint["accuracy"]["both"]["25"] >= 0.9
