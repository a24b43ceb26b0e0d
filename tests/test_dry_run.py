"""Dry runs: what would be trained, where and for how long, with nothing trained or written."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from latebloom import at_fraction, load_config, run
from latebloom.cli import main
from latebloom.engine.checkpoint import save_checkpoint
from latebloom.engine.pause import Stop
from latebloom.estimate import Estimator, format_duration

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("latebloom.estimate.SECONDS", 0.05)
    monkeypatch.setattr("latebloom.estimate.SHORTEST", 0.01)


@pytest.fixture
def config_file(tiny, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(tiny.to_json()))
    return tmp_path / "tiny.json"


def dry_run(*words: str) -> None:
    main([*words, "--dry-run", "--device", "cpu"])


def test_the_configuration_can_be_pasted_back_and_nothing_is_written(tiny, config_file, capsys):
    dry_run("train", "--config", "tiny.json", "training.steps=40", "delay.until.step=30")
    printed = capsys.readouterr()
    assert list(Path().iterdir()) == [Path("tiny.json")]
    Path("again.json").write_text(printed.out)
    asked = load_config("again.json")
    assert (asked.training.steps, asked.delay and asked.delay.until) == (40, replace(tiny.delay.until, step=30))
    for sentence in (
        "Model: 2 blocks of recurrence, attention, MLP, width 8; ",
        "Task: composite, lengths 2 to 5, ",
        "Delay: steps 1 to 30 (attention: bypass, without recall in the loss); 8 sequences per step, learning",
        "Training: steps 31 to 40; 16 sequences per step, learning rate 0.003 after 4 warm-up steps",
        "Test: lengths 5 (1x), 10 (2x), 15 (3x); 32 sequences each",
        f"Folder: runs/tiny-{asked.hash} would be created",
        "seconds on cpu, estimated from a few steps. Nothing was trained or written.",
    ):
        assert sentence in printed.err


def test_the_example_shows_each_answer_below_its_token(config_file, capsys):
    dry_run("train", "--config", "tiny.json", "seed=3")
    tokens, sums, recalled = [line for line in capsys.readouterr().err.splitlines() if line.startswith("    ")]
    *items, asked, ask, key = tokens.split()[1:]
    assert (asked, ask) == ("SUM", "ASK")
    assert sums[tokens.index("SUM")] == str(sum(map(int, items[:3])) % 3)
    assert recalled.split()[1] == items[items.index(key) + 1]
    assert recalled.index(recalled.split()[1]) == tokens.rindex(key)


def test_the_state_of_the_folder_is_told(tiny, config_file, capsys):
    Path("half/checkpoints").mkdir(parents=True)
    save_checkpoint(Path("half/checkpoints"), {}, {"step": 7}, tiny.hash)
    Path("half/config.json").write_text(json.dumps(tiny.to_json()))
    dry_run("train", "--out", "half")
    assert "Folder: half holds this run, interrupted; it would continue from step 7" in capsys.readouterr().err
    run(tiny, "whole", device="cpu")
    before = {path: path.read_bytes() for path in Path("whole").rglob("*") if path.is_file()}
    dry_run("train", "--out", "whole")
    printed = capsys.readouterr().err
    assert "Folder: whole holds this run, finished; nothing would be trained" in printed
    assert "Time: none." in printed
    assert {path: path.read_bytes() for path in Path("whole").rglob("*") if path.is_file()} == before


def test_runs_that_were_interrupted_in_a_stack_are_told(tiny, config_file, capsys):
    """They have no checkpoints of their own, and one of them cannot continue alone."""
    Path("runs/stack-0/checkpoints").mkdir(parents=True)
    save_checkpoint(Path("runs/stack-0/checkpoints"), {}, {"step": 7}, "0")
    Path("runs/stack-0/members.json").write_text(json.dumps({"seed-0": tiny.hash}))
    Path("runs/seed-0").mkdir()
    Path("runs/seed-0/config.json").write_text(json.dumps(tiny.to_json()))
    Path("runs/seed-0/environment.json").write_text(json.dumps({"command": ["latebloom", "train", "--seeds", "2"]}))
    dry_run("train", "--config", "tiny.json", "seed=0", "--seeds", "2", "--out", "runs")
    assert "Folder: runs holds 0 finished and 1 interrupted of the 2 runs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        dry_run("train", "--out", "runs/seed-0")
    assert "was trained in a stack of 1 runs; continue with: latebloom train --seeds 2" in capsys.readouterr().err


def test_a_run_that_can_be_extended_is_told(tiny, config_file, capsys):
    """Also without a dry run: a finished run that is extended is trained, not shown."""
    constant = replace(
        tiny.training,
        delayed=replace(tiny.training.delayed, schedule="constant"),
        full=replace(tiny.training.full, schedule="constant"),
    )
    run(replace(tiny, training=constant), "run", device="cpu")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    dry_run("train", "--out", "run", "training.steps=40")
    assert (
        "Folder: run holds this run with other settings; it would be extended from step 24" in capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    with pytest.raises(SystemExit):
        dry_run("train", "--out", "run", "training.steps=20")
    assert "training.steps: 24 steps are done already, more than 20" in capsys.readouterr().err
    main(["train", "--out", "run", "training.steps=40", "--device", "cpu"])
    assert "finished already" not in capsys.readouterr().out
    main(["train", "--out", "run", "--device", "cpu"])
    assert "run is finished already" in capsys.readouterr().out


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_other_settings_than_those_of_the_folder_are_named(words, tiny, config_file, capsys):
    run(tiny, "run", device="cpu")
    changed = ["training.steps=30", "delay.hold=freeze", "delay.until.name=at_fraction", "delay.until.fraction=0.5"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--out", "run", *changed, *words])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "latebloom: out: run holds a run with other settings "
        '(delay.until: {"name": "at_step", "step": 12} -> {"name": "at_fraction", "fraction": 0.5}, '
        'delay.hold: "bypass" -> "freeze", training.steps: 24 -> 30); '
        "choose another folder, or leave these settings out to continue that run\n"
    )


def test_many_seeds_and_a_study(config_file, capsys, monkeypatch):
    dry_run("train", "--config", "tiny.json", "--seed", "4", "--seeds", "3", "--out", "many")
    printed = capsys.readouterr().err
    assert "Runs: 3, with seeds 4 to 6" in printed
    assert "Folder: many would be created" in printed
    Path("mine.py").write_text(
        "from latebloom import load_config\nfrom latebloom.studies.plan import Arm, Plan, study\n"
        "tiny = load_config('tiny.json')\n"
        "@study('mine')\ndef mine(scale):\n"
        "    arms = [Arm('a', tiny, choices=(tiny, tiny)), Arm('b', tiny)]\n"
        "    return Plan(arms, seeds=range(5), tuning_seeds=(7,), second_round=(8, 9), finalists=1)\n"
    )
    monkeypatch.setattr("latebloom.dry_run.START_FIRST_WORKER", 40.0)
    dry_run("study", "mine.py", "--seeds", "2", "--workers", "2")
    printed = capsys.readouterr().out.splitlines()
    cells = [re.findall(r"[\w-]+", line) for line in printed]
    assert ["a", "composite", "2", "24", "4"] in cells
    assert ["b", "composite", "2", "24", "-"] in cells
    assert printed[-5:-1] == [
        "Together: 8 runs, 192 steps",
        "Tuning: 96 of these steps, instead of 144 for all choices on all tuning seeds",
        # All runs of a seed are the same but for their last step, which the choice in the second round has alone.
        "Shared beginnings: 69 of these steps are trained only once, for several runs",
        "Folder: studies/mine-paper would be created",
    ]
    seconds = re.match(r"Time: about (\d+) seconds in 2 processes", printed[-1])
    assert seconds
    assert int(seconds[1]) > 40  # the start of the first process counts once
    assert {path.name for path in Path().iterdir()} <= {"tiny.json", "mine.py", "__pycache__"}


def test_a_plan_says_what_tuning_takes_at_most_and_how_many_seeds_it_shows_are_needed(config_file, capsys, monkeypatch):
    Path("mine.py").write_text(
        "from latebloom import load_config\nfrom latebloom.config import with_overrides\n"
        "from latebloom.studies.plan import Arm, Axis, Plan, Round, study\n"
        "tiny = load_config('tiny.json')\n"
        "@study('mine')\ndef mine(scale):\n"
        "    choices = [with_overrides(tiny, [f'training.full.learning_rate={rate}']) for rate in (1e-3, 2e-3)]\n"
        "    axis = Axis(fields=('training.full.learning_rate',), above=(4e-3,))\n"
        "    rounds = [Round(seeds=(7, 8), share=0.5), Round()]\n"
        "    return Plan([Arm('a', tiny, tuple(choices), axis=axis)], seeds=range(5), rounds=rounds)\n"
    )
    monkeypatch.setattr("latebloom.dry_run.needed_seeds", lambda plan, folder: f"{plan.run_count} of {folder}")
    dry_run("study", "mine.py")
    printed = capsys.readouterr().out
    assert "Tuning: 72 of these steps, instead of 96 for all choices on all tuning seeds" in printed
    assert "Tuning: at most 144 steps, if no setting is above chance" in printed  # 2 x 2 x 24, and 2 x 24 beyond
    assert "Seeds: 5 of studies/mine-paper" in printed


def test_the_estimate_adds_up_steps_and_tests(tiny, tmp_path, monkeypatch):
    """A step of the delay takes 1 second, one after it 10, and a token of a test a millionth of one."""
    monkeypatch.setattr(Estimator, "_step", lambda self, trainer, configs: 1.0 if configs[0].delay else 10.0)
    monkeypatch.setattr(Estimator, "_token", lambda self, trainer, config: 1e-6)
    assert Estimator(CPU).seconds({"": tiny}, tmp_path) == pytest.approx(12 * 1 + 12 * 10, abs=0.1)
    late = replace(tiny, delay=replace(tiny.delay, until=at_fraction(0.75)))
    assert Estimator(CPU).seconds({"": late}, tmp_path) == pytest.approx(18 * 1 + 6 * 10, abs=0.1)
    joint = replace(tiny, delay=None)
    runs = {"a": tiny, "b": joint, "c": replace(joint, seed=1)}
    monkeypatch.setattr("latebloom.estimate.START_WORKER", 2.0)
    assert Estimator(CPU, workers=2).seconds(runs, tmp_path) == pytest.approx((138 + 2 * 240) / 2, abs=0.1)
    assert Estimator(CPU, workers=9).seconds(runs, tmp_path) == pytest.approx(242, abs=0.1)
    paused = {"b": Stop(6), "c": Stop(6)}
    assert Estimator(CPU).seconds(runs, tmp_path, paused) == pytest.approx(132 + 2 * 60, abs=0.1)
    slower = replace(tiny, training=replace(tiny.training, recurrence_factor=0.3))  # differs after the switch
    assert Estimator(CPU).seconds({"a": tiny, "b": slower}, tmp_path) == pytest.approx(132 + 120, abs=0.1)
    probed = replace(tiny, training=replace(tiny.training, probe_every=5))  # at steps 5, 10, 15 and 20
    assert Estimator(CPU)._measure_probe([probed]) > 0
    monkeypatch.setattr(Estimator, "_measure_probe", lambda self, configs: 7.0)
    assert Estimator(CPU).seconds({"": probed}, tmp_path) == pytest.approx(132 + 4 * 7, abs=0.1)
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    save_checkpoint(tmp_path / "a" / "checkpoints", {}, {"step": 14}, tiny.hash)
    assert Estimator(CPU).seconds({"a": tiny}, tmp_path) == pytest.approx(10 * 10, abs=0.1)


def test_runs_of_one_program_are_measured_together(tiny):
    tiny = replace(tiny, training=replace(tiny.training, delayed=tiny.training.full))  # with batches of one size
    stack = [tiny, replace(tiny, seed=1, delay=None), replace(tiny, seed=2)]
    estimator = Estimator(CPU)
    for holding in (True, False):
        step, token = estimator._measure(stack, holding=holding)
        assert step > 0
        assert (token > 0) is not holding


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_many_seeds_on_a_gpu_are_estimated_as_one_program(config_file, capsys):
    main(["train", "--config", "tiny.json", "--seeds", "20", "--out", "many", "--dry-run", "--device", "cuda"])
    assert "on cuda, estimated from a few steps" in capsys.readouterr().err
    assert not Path("many").exists()


def test_the_estimate_leaves_the_process_as_it_was(tiny, tmp_path):
    before = torch.get_rng_state(), torch.get_num_threads()
    assert Estimator(CPU, workers=2).seconds({"": tiny}, tmp_path) > 0
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 seconds"), (80, "80 seconds"), (100, "1.7 minutes"), (1500, "25 minutes"), (7000, "1.9 hours")],
)
def test_durations_are_in_words(seconds, words):
    assert format_duration(seconds) == words
