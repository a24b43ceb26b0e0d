"""Rounds of tuning that stop runs early: what is trained, and interruptions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from latebloom import at_step, run
from latebloom.cli import main
from latebloom.engine import loop
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import run_until
from latebloom.engine.pause import Stop, read_pause
from latebloom.errors import CheckpointError, ConfigError, InterruptedRun
from latebloom.results.file import read_results
from latebloom.studies import beginnings
from latebloom.studies.beginnings import saved_by_sharing, train_sharing
from latebloom.studies.execute import execute
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.local import train_all
from latebloom.studies.plan import Plan, Round
from latebloom.studies.stacks import run_in_stacks

CPU = torch.device("cpu")


def in_turn(configs, folder, stops=None, done=None):
    """A runner without processes, which counts the steps that it trains."""
    for name, config in configs.items():
        before = RunFolder(folder / name).is_finished
        first = []
        if stop := (stops or {}).get(name):
            run_until(config, folder / name, stop, device="cpu", observe=first.append)
        else:
            run(config, folder / name, device="cpu", observe=first.append)
        if done is not None and first and not before:
            done[name] = done.get(name, 0) + first[-1].step - first[0].step
    return {}


@pytest.fixture
def learned(monkeypatch):
    """Every choice counts as clearly above chance, after however few steps."""
    monkeypatch.setattr("latebloom.studies.ranking._is_clear", lambda *words, **settings: True)


def test_the_better_half_goes_on_from_where_it_was(plan, tmp_path, learned):
    done: dict[str, int] = {}
    stages = []
    execute("mine", plan, tmp_path, lambda *words: in_turn(*words, done=done), stages.append)
    (told,) = json.loads((tmp_path / "choices.json").read_text())
    stopped = [choice["steps"] for choice in told["choices"]]
    assert sorted(stopped) == [6, 6, 12, 12]
    assert stopped[told["chosen"]] == 12
    for k, choice in enumerate(told["choices"]):
        place = f"tuning/composite/dat/choice-{k}"
        assert done[f"{place}/seed-9"] == choice["steps"]  # every step once
        assert done.get(f"{place}/seed-10", 0) == (12 if choice["steps"] == 12 else 0)
        assert [one["steps"] for one in choice["rounds"]] == [6, 9, 12][: 3 if choice["steps"] == 12 else 1]
        assert [one["seeds"] for one in choice["rounds"]] == [1, 1, 2][: 3 if choice["steps"] == 12 else 1]
        assert choice["rounds"][0]["answers"] == ["sum"]  # before the switch at step 8 recall is not trained
        assert {one["answers"] for one in choice["rounds"][1:]} <= {"all"}
    # The ranking of the first round, from the files alone.
    first, near = {}, {}
    for k in range(4):
        pause = read_pause(RunFolder(tmp_path / "tuning" / "composite" / "dat" / f"choice-{k}" / "seed-9"), 6)
        assert pause is not None
        first[k] = sum(pause.evaluation.accuracy(length, "sum") for length in (10, 15)) / 2
        near[k] = pause.evaluation.accuracy(5, "sum")
        assert told["choices"][k]["rounds"][0]["accuracy_beyond"] == pytest.approx(first[k])
    best = sorted(first, key=lambda k: (-first[k], -near[k]))[:2]
    assert {k for k in range(4) if stopped[k] == 12} == set(best)
    # The plan knows what it trains and saves, without training.
    tuned = sum(steps for name, steps in done.items() if name.startswith("tuning"))
    begun, going_on = plan.tuning_steps()
    assert sum(begun) + going_on == tuned == 4 * 6 + 2 * 3 + 2 * 3 + 2 * 12
    assert plan.saved_by_rounds == 4 * 2 * 12 - tuned
    assert [stage.purpose for stage in stages] == [
        *(f"choosing settings, round {n} of 3" for n in (1, 2, 3)),
        "the runs to report",
    ]
    assert [(len(stage.later), stage.going_on) for stage in stages] == [(3, 12), (3, 6), (1, 0), (0, 0)]
    # A run that was stopped is in the results with its test; one that went on is bit for bit a run that never paused.
    records = {(one.arm[-1], one.seed): one for one in read_results([tmp_path / "tuning.parquet"])}
    assert [records[str(k), 9].steps for k in range(4)] == stopped
    assert all(one.evaluation is not None for one in records.values())
    whole = run(replace(plan.arms[0].choices[best[0]], seed=9), device="cpu")
    assert whole.evaluation == records[str(best[0]), 9].evaluation
    # The report tells what was stopped where.
    main(["report", str(tmp_path), "--out", str(tmp_path / "report")])
    table = (tmp_path / "report" / "tables" / "mine-composite-5-tried.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert rows[0][2:4] == ["tuning seeds", "steps"]
    assert sorted(row[3] for row in rows[2:]) == ["12", "12", "6", "6"]
    assert "were stopped there by a round of tuning" in table


@pytest.mark.parametrize("how", ["in turn", "in stacks"])
def test_a_study_that_is_stopped_again_and_again_makes_the_same_choice(plan, tmp_path, monkeypatch, learned, how):
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    def runner(configs, folder, stops=None):
        if how == "in turn":
            return in_turn(configs, folder, stops)
        return run_in_stacks(configs, folder, CPU, observe, fit=lambda config, device: 8, stops=stops or {})

    left = [10**6]

    def observe(name, seen):
        left[0] -= 1
        if left[0] == 0:
            raise InterruptedRun("stopped by the test")

    execute("mine", plan, tmp_path / "whole", runner)
    used = 10**6 - left[0]
    for _ in range(3 if how == "in stacks" else 0):
        left[0] = used // 5
        with pytest.raises(InterruptedRun):
            execute("mine", plan, tmp_path / "cut", runner)
        left[0] = 10**6
    if how == "in turn":
        count = [0]

        def cut(configs, folder, stops=None):
            """Stop before each run once."""
            for name, config in configs.items():
                stop = (stops or {}).get(name)
                in_turn({name: config}, folder, {name: stop} if stop else None)
                count[0] += 1
                if count[0] in (2, 5, 8):
                    raise InterruptedRun("stopped by the test")
            return {}

        for _ in range(3):
            with pytest.raises(InterruptedRun):
                execute("mine", plan, tmp_path / "cut", cut)
    execute("mine", plan, tmp_path / "cut", runner)
    chosen = [(tmp_path / name / "choices.json").read_text() for name in ("whole", "cut")]
    assert chosen[0] == chosen[1]
    ends = [read_results([tmp_path / name / "results.parquet"]) for name in ("whole", "cut")]
    assert [one.evaluation for one in ends[0]] == [one.evaluation for one in ends[1]]
    assert not list(tmp_path.glob("*/stack-*"))


def test_processes_pause_too(plan, tmp_path):
    (arm,) = plan.arms
    configs = {f"choice-{k}": replace(choice, seed=9) for k, choice in enumerate(arm.choices[:2])}
    seen = {}
    stops = {"choice-0": Stop(5)}
    assert train_all(configs, tmp_path, workers=2, device="cpu", observe=seen.__setitem__, stops=stops) == {}
    assert (seen["choice-0"].phase, seen["choice-0"].step) == ("paused", 5)
    assert seen["choice-1"].phase == "done"
    assert train_all(configs, tmp_path, workers=2, device="cpu", stops=stops) == {}  # nothing is left to do


def test_the_older_form_is_a_special_case(plan):
    (arm,) = plan.arms
    older = Plan([arm], (0,), tuning_seeds=(9, 11), second_round=(10,), finalists=3)
    newer = Plan([arm], (0,), rounds=(Round(seeds=(9, 11), keep=3), Round(seeds=(10,))))
    assert older.tuning == newer.tuning
    assert older.tuning_count == newer.tuning_count == 4 * 2 + 3
    assert older.tuning_steps() == newer.tuning_steps() == ([12] * 11, 0)
    assert Plan([arm], (0,), tuning_seeds=(9,)).saved_by_rounds == 0


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ((Round(share=1.0),), "round 1: seeds: the first round needs held-out seeds"),
        ((Round(seeds=(9,), share=0.5),), "round 1: share: 0.5 is not possible"),
        ((Round(seeds=(9,), share=1.5),), "round 1: share: 1.5 is not possible"),
        ((Round(seeds=(9,), share=0.5), Round(share=0.4)), "round 2: share: 0.4 after 0.5 is not possible"),
        ((Round(seeds=(9,)), Round()), "1 after 1 without more seeds"),
        ((Round(seeds=(9,), share=0.5), Round(seeds=(9,))), "a seed is added twice"),
        ((Round(seeds=(0,), share=0.5), Round()), "round 1: seeds: tuning must use seeds that"),
        ((Round(seeds=(9,), keep=0, share=0.5), Round()), "round 1: keep: 0 is not possible"),
        (((9,),), "rounds: "),
    ],
)  # fmt: skip
def test_rounds_that_make_no_sense_are_refused(plan, rounds, said):
    with pytest.raises(ConfigError, match=said):
        replace(plan, rounds=rounds)
    with pytest.raises(ConfigError, match="give either rounds or tuning_seeds"):
        replace(plan, tuning_seeds=(11,))


def test_a_folder_keeps_the_rounds_that_it_began_with(plan, tmp_path):
    def stop(*words):
        raise InterruptedRun("stopped")

    with pytest.raises(InterruptedRun):
        execute("mine", plan, tmp_path, stop)
    other = (Round(seeds=(9,), share=0.25), *plan.rounds[1:])
    with pytest.raises(CheckpointError, match="its rounds differ"):
        execute("mine", replace(plan, rounds=other), tmp_path, stop)


@pytest.mark.parametrize("cut", [None, 1, 3])
def test_stacks_grow_where_runs_are_forked(tiny, tmp_path, monkeypatch, cut):
    """All runs go in step, so that those that are forked join the stack; also through an interruption."""
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    same = replace(tiny.training, restart=False, delayed=tiny.training.full)
    base = replace(tiny, training=same)
    runs = {f"at {step}": replace(base, delay=replace(base.delay, until=at_step(step))) for step in (6, 12, 18)}
    runs["joint"] = replace(base, delay=None)
    sizes = []

    def train(configs, folder, stops):
        def observe(name, seen):
            if len(sizes) == cut and seen.step > {1: 3, 3: 14}[cut]:
                raise InterruptedRun("stopped by the test")

        sizes.append(len(configs))
        return run_in_stacks(configs, folder, CPU, observe, fit=lambda config, device: 8, stops=stops)

    def study():
        return train_sharing(runs, tmp_path / "shared", {}, train, "cpu", in_step=True)

    if cut is not None:
        with pytest.raises(InterruptedRun):
            study()
    assert study() == {}
    assert cut is not None or sizes == [2, 3, 4]
    run_in_stacks(runs, tmp_path / "whole", CPU, lambda name, seen: None, fit=lambda config, device: 8)
    for name in runs:
        found, wanted = (RunFolder(tmp_path / place / name) for place in ("shared", "whole"))
        assert found.read_result(runs[name])["switch_step"] == wanted.read_result(runs[name])["switch_step"]
        lines = [
            [json.loads(line) for line in place.metrics_file.read_text().splitlines()] for place in (found, wanted)
        ]
        assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
        for one, other in zip(*lines, strict=True):
            assert one.get("loss", 0) == pytest.approx(other.get("loss", 0), rel=1e-3)  # up to rounding: other stacks
    assert not list(tmp_path.glob("*/stack-*"))


@pytest.mark.parametrize(("study", "saved"), [("timing", 479_880), ("holding", 300_000), ("paper", 0)])
def test_a_plan_knows_what_sharing_saves(study, saved):
    """In `timing`, switches at 10 to 90% on one schedule; in `holding`, three treatments after the switch."""
    plan = plan_of(find_study(study), "paper")
    assert saved_by_sharing(plan) == saved
    if study == "timing":  # each arm shares what comes before the switch of the one before it
        assert saved == 3 * 10 * sum(share * 1_000 - 1 for share in (1, 3, 5, 7))


FILE = """
from dataclasses import replace
from latebloom import at_step, load_config
from latebloom.studies.plan import Arm, Plan, study

base = load_config("tiny.json")
base = replace(base, training=replace(base.training, restart=False, delayed=base.training.full))

@study("sharing")
def sharing(scale):
    arms = [Arm(f"at {step}", replace(base, delay=replace(base.delay, until=at_step(step)))) for step in (6, 12, 18)]
    slow = replace(base, training=replace(base.training, recurrence_factor=0.3))
    return Plan([*arms, Arm("slow", slow)], seeds=range(2))
"""


def test_a_study_trains_shared_beginnings_once(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.json").write_text(json.dumps(tiny.to_json()))
    Path("mine.py").write_text(FILE)
    monkeypatch.setattr("latebloom.estimate.SECONDS", 0.02)
    main(["study", "mine.py", "--dry-run", "--device", "cpu"])
    # At 6 and at 12 share 5 steps, at 12 and at 18 share 11, and the slow one shares 12 with the run at 12.
    assert f"Shared beginnings: {2 * (5 + 11 + 12)} of these steps" in capsys.readouterr().out
    main(["study", "mine.py", "--out", "out", "--workers", "2", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert "of the time was not training steps" in printed
    times = json.loads(Path("out/times.json").read_text())
    assert {"set-up", "steps", "evaluation", "checkpoints", "collecting", "waiting"} <= times.keys()
    forked = {
        about.parent.parent.name: json.loads(about.read_text()).get("forked", {}).get("step")
        for about in Path("out").rglob("seed-1/environment.json")
    }
    assert forked == {"at-6": None, "at-12": 5, "at-18": 11, "slow": 12}
    for folder in (Path("out/composite") / arm / "seed-1" for arm in ("at-18", "slow")):
        config = RunFolder(folder).read_config()
        assert config.seed == 1
        run(config, Path("alone") / folder.parent.name, device="cpu")
        for file in ("metrics.jsonl", "evaluation.json", "model/model.safetensors"):
            assert (folder / file).read_bytes() == (Path("alone") / folder.parent.name / file).read_bytes()


def test_settings_that_differ_from_the_first_step_are_not_compared(tiny, monkeypatch):
    """A study may have thousands of settings, and a comparison of each two would take hours."""
    compared = []
    monkeypatch.setattr(beginnings, "shared_steps", lambda one, other: compared.append(one) or 0)
    phases = [replace(tiny.training.delayed, learning_rate=1e-3 * (k + 1)) for k in range(20)]
    configs = {f"{k}": replace(tiny, training=replace(tiny.training, delayed=one)) for k, one in enumerate(phases)}
    assert beginnings.find_forks(configs) == []
    assert compared == []
