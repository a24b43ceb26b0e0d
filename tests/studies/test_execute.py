"""A study from plan to results: choices, failures, interruptions."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from statistics import mean

import pytest
from processes import workers_of

from latebloom import run
from latebloom.cli import main
from latebloom.engine.checkpoint import save_checkpoint
from latebloom.engine.folder import IN_USE
from latebloom.engine.pause import PAUSED
from latebloom.errors import CheckpointError, ConfigError, InterruptedRun, LatebloomError
from latebloom.results.file import read_results
from latebloom.results.settings import changes
from latebloom.studies.execute import _short_settings, execute
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.local import train_all
from latebloom.studies.plan import Arm, Plan
from latebloom.study import _too_few, describe_begun, train_plan


def in_turn(configs, folder):
    """A runner without processes."""
    for name, config in configs.items():
        run(config, folder / name, device="cpu")
    return {}


@pytest.fixture
def plan(tiny):
    training = replace(tiny.training, steps=8, check_every=4)
    quick = replace(tiny, training=training, delay=None)
    hopeless = replace(quick, training=replace(training, full=replace(training.full, learning_rate=1e-12)))
    return Plan([Arm("joint", quick), Arm("tuned", quick, (hopeless, quick))], seeds=(0, 1), tuning_seeds=(9,))


def test_every_arm_is_trained_with_every_seed_and_its_best_choice(plan, tmp_path):
    joint, tuned = plan.arms
    plan = replace(plan, arms=[joint, replace(tuned, against="joint")])
    outcome = execute("mine", plan, tmp_path, in_turn)
    records = read_results([outcome.results])
    assert [(r.study, r.task, r.arm, r.seed) for r in records] == [
        ("mine", "composite", arm, seed) for arm in ("joint", "tuned") for seed in (0, 1)
    ]
    assert {(r.arm, r.against) for r in records} == {("joint", ()), ("tuned", ("joint",))}
    chosen = json.loads((tmp_path / "choices.json").read_text())
    scores = [choice["accuracy_beyond"] for choice in chosen[0]["choices"]]
    assert chosen[0]["chosen"] == scores.index(max(scores))
    best = plan.arms[1].choices[chosen[0]["chosen"]]
    assert {r.config_hash for r in records if r.arm == "tuned"} == {replace(best, seed=s).hash for s in (0, 1)}
    tuning = read_results([tmp_path / "tuning.parquet"])
    assert {(r.arm, r.seed) for r in tuning} == {("tuned, choice 0", 9), ("tuned, choice 1", 9)}


def test_settings_of_both_phases_are_told_apart_where_they_differ():
    both = {"training.delayed.learning_rate": 0.01, "training.full.learning_rate": 0.01, "training.weigh": "answers"}
    assert _short_settings(both) == "learning_rate=0.01 weigh=answers"
    apart = both | {"training.full.learning_rate": 0.003}
    assert (
        _short_settings(apart) == "training.delayed.learning_rate=0.01 training.full.learning_rate=0.003 weigh=answers"
    )


def test_the_best_choices_go_on_to_a_second_round_and_one_of_them_is_chosen(plan, tmp_path):
    _, tuned = plan.arms
    hopeless, quick = tuned.choices
    faster = replace(quick, training=replace(quick.training, full=replace(quick.training.full, learning_rate=1e-2)))
    arms = [replace(tuned, choices=(quick, hopeless, faster))]
    plan = Plan(arms, seeds=(0,), tuning_seeds=(9,), second_round=(10, 11), finalists=2)
    assert plan.tuning_count == 3 * 1 + 2 * 2
    asked, told = [], []

    def runner(configs, folder):
        asked.append(list(configs))
        return in_turn(configs, folder)

    outcome = execute("mine", plan, tmp_path, runner, told.append)
    assert [len(names) for names in asked] == [3, 4, 1]
    assert [(stage.purpose, [*stage.later]) for stage in told] == [
        ("choosing settings, first of two rounds", [8] * (4 + 1)),
        ("choosing settings, second round", [8]),
        ("the runs to report", []),
    ]
    assert told[0].names == {
        f"tuning/composite/tuned/choice-{k}": f"composite/tuned learning_rate={rate}"
        for k, rate in enumerate((quick.training.full.learning_rate, 1e-12, 0.01))
    }

    def beyond(record):  # what the choice is made by, from the results file alone
        lengths = [length for length in record.evaluation.lengths if length > record.training_length]
        return mean(record.evaluation.accuracy(length) for length in lengths)

    by_choice = {}
    for record in read_results([tmp_path / "tuning.parquet"]):
        by_choice.setdefault(int(record.arm[-1]), {})[record.seed] = beyond(record)
    finalists = sorted(range(3), key=lambda k: -by_choice[k][9])[:2]
    assert {k: list(seeds) for k, seeds in by_choice.items()} == {
        k: [9, 10, 11] if k in finalists else [9] for k in range(3)
    }
    best = max(finalists, key=lambda k: mean(by_choice[k].values()))
    (record,) = read_results([outcome.results])
    assert record.config_hash == replace(arms[0].choices[best], seed=0).hash
    told = json.loads((tmp_path / "choices.json").read_text())[0]
    assert told["chosen"] == best
    assert [choice["seeds"] for choice in told["choices"]] == [len(by_choice[k]) for k in range(3)]


@pytest.fixture
def two_rounds(plan):
    _, tuned = plan.arms
    slow, quick = tuned.choices
    return Plan([replace(tuned, choices=(slow, quick))], seeds=(0,), tuning_seeds=(9,), second_round=(10,), finalists=2)


def test_a_study_that_is_stopped_in_its_second_round_goes_on_to_the_same_end(two_rounds, tmp_path):
    execute("mine", two_rounds, tmp_path / "whole", in_turn)

    def stopped(configs, folder):
        if any("seed-10" in name for name in configs):
            in_turn(dict(list(configs.items())[:1]), folder)
            raise KeyboardInterrupt
        return in_turn(configs, folder)

    with pytest.raises(KeyboardInterrupt):
        execute("mine", two_rounds, tmp_path / "stopped", stopped)
    (cut,) = [r for r in read_results([tmp_path / "stopped" / "tuning.parquet"]) if r.seed == 10 and r.evaluation]
    assert cut.arm.startswith("tuned, choice")
    execute("mine", two_rounds, tmp_path / "stopped", in_turn)
    assert (tmp_path / "stopped" / "choices.json").read_text() == (tmp_path / "whole" / "choices.json").read_text()
    ends = [read_results([tmp_path / name / "results.parquet"])[0] for name in ("whole", "stopped")]
    assert ends[0].evaluation == ends[1].evaluation


@pytest.mark.parametrize("failing", ["choice-0", "choice"])
def test_choices_that_fail_in_the_second_round_are_not_chosen(two_rounds, tmp_path, failing):
    def breaks(configs, folder):
        bad = {name: "no luck" for name in configs if "seed-10" in name and failing in name}
        return in_turn({name: config for name, config in configs.items() if name not in bad}, folder) | bad

    if failing == "choice":
        with pytest.raises(LatebloomError, match="every choice in the second round of arm tuned on composite failed"):
            execute("mine", two_rounds, tmp_path, breaks)
        return
    outcome = execute("mine", two_rounds, tmp_path, breaks)
    assert json.loads((tmp_path / "choices.json").read_text())[0]["chosen"] == 1
    (failed,) = outcome.failures
    assert failed.endswith("choice-0/seed-10")
    # Another try that succeeds leaves nothing to report.
    assert execute("mine", two_rounds, tmp_path, in_turn).failures == {}


def test_a_choice_stands_once_a_run_was_begun_with_it(plan, tmp_path):
    """The better choice fails for a passing reason, and would win when the study is started again."""
    best = json.loads(_chosen(plan, tmp_path / "as it is"))[0]["chosen"]

    def without_it(configs, folder):
        failing = {name: "the disk is full" for name in configs if f"choice-{best}" in name}
        return in_turn({name: c for name, c in configs.items() if name not in failing}, folder) | failing

    execute("mine", plan, tmp_path / "again", without_it)
    outcome = execute("mine", plan, tmp_path / "again", in_turn)
    assert outcome.failures == {}
    assert json.loads((tmp_path / "again" / "choices.json").read_text())[0]["chosen"] == 1 - best


def _chosen(plan, folder):
    execute("mine", plan, folder, in_turn)
    return (folder / "choices.json").read_text()


def test_a_study_that_is_started_again_repeats_nothing(plan, tmp_path):
    execute("mine", plan, tmp_path, in_turn)

    def not_again(configs, folder):
        assert all((folder / name / "result.json").exists() for name in configs)
        return {}

    first = (tmp_path / "results.parquet").read_bytes()
    execute("mine", plan, tmp_path, not_again)
    assert (tmp_path / "results.parquet").read_bytes() == first


def test_what_was_finished_is_in_the_results_when_the_study_is_interrupted(plan, tmp_path):
    plan = Plan(plan.arms[:1], plan.seeds)

    def stopped(configs, folder):
        name, config = next(iter(configs.items()))
        run(config, folder / name, device="cpu")
        raise InterruptedRun("stopped by the test")

    with pytest.raises(InterruptedRun):
        execute("mine", plan, tmp_path, stopped)
    records = read_results([tmp_path / "results.parquet"])
    assert [record.failure for record in records] == [None, "not started"]


def test_a_run_that_fails_is_in_the_results_with_its_reason(plan, tmp_path):
    plan = Plan(plan.arms[:1], plan.seeds)

    def one_fails(configs, folder):
        first, second = configs
        run(configs[first], folder / first, device="cpu")
        return {second: "it was not to be"}

    outcome = execute("mine", plan, tmp_path, one_fails)
    assert list(outcome.failures.values()) == ["it was not to be"]
    assert [record.failure for record in read_results([outcome.results])] == [None, "it was not to be"]


def test_an_arm_whose_choices_all_fail_is_an_error(plan, tmp_path):
    with pytest.raises(LatebloomError, match="every choice of arm tuned on composite failed: no luck"):
        execute("mine", plan, tmp_path, lambda configs, folder: dict.fromkeys(configs, "no luck"))


def test_a_run_that_another_process_trains_has_not_failed_and_changes_no_choice(plan, tmp_path):
    def busy(configs, folder):
        return in_turn(dict(list(configs.items())[1:]), folder) | {next(iter(configs)): f"x {IN_USE}"}

    with pytest.raises(LatebloomError, match=f"{IN_USE}; give the same command again when that process has ended"):
        execute("mine", plan, tmp_path / "busy", busy)
    execute("mine", plan, tmp_path / "busy", in_turn)
    execute("mine", plan, tmp_path / "whole", in_turn)
    choices = [(tmp_path / name / "choices.json").read_bytes() for name in ("busy", "whole")]
    assert choices[0] == choices[1]


def test_two_studies_do_not_share_a_folder(plan, tmp_path):
    def nested(configs, folder):
        with pytest.raises(CheckpointError, match="another process runs a study there"):
            execute("mine", plan, tmp_path, in_turn)
        return in_turn(configs, folder)

    execute("mine", plan, tmp_path, nested)
    joint, tuned = plan.arms
    clipped = replace(joint.config, training=replace(joint.config.training, clip=2.0))
    for name, other, said in (
        ("yours", plan, "holds the study mine; choose another folder"),
        ("mine", replace(plan, tuning_seeds=(8,)), "another scale: its tuning_seeds differ;"),
        ("mine", replace(plan, arms=[tuned, joint]), "the order of its arms;"),
        (
            "mine",
            replace(plan, arms=[tuned]),
            "holds this study with differences, perhaps at another scale: there is an arm joint;",
        ),
        ("mine", replace(plan, arms=[*plan.arms, replace(joint, name="new")]), "scale: there is no arm new;"),
        ("mine", replace(plan, arms=[replace(joint, config=clipped), tuned]), "arm joint has training.clip=1.0;"),
        (
            "mine",
            replace(plan, arms=[joint, replace(tuned, choices=tuned.choices[:1])]),
            "arm tuned has other settings",
        ),
    ):
        with pytest.raises(CheckpointError, match=said):
            execute(name, other, tmp_path, in_turn)
    with pytest.raises(CheckpointError, match=r"has runs of the arm joint with seeds that this study"):
        execute("mine", replace(plan, seeds=(0,)), tmp_path, in_turn)
    for damage in ("{}", '{"arms": [3], "seeds": 4}', "[]"):
        (tmp_path / "study.json").write_text(damage)
        with pytest.raises(CheckpointError):
            execute("mine", plan, tmp_path, in_turn)


def test_seeds_can_be_added_to_a_study_and_those_that_are_done_stay(plan, tmp_path):
    execute("mine", plan, tmp_path, in_turn)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("seed-*/result.json")}
    trained = []

    def counting(configs, folder):
        trained.extend(name for name in configs if not (folder / name / "result.json").exists())
        return in_turn(configs, folder)

    outcome = execute("mine", replace(plan, seeds=(0, 1, 2)), tmp_path, counting)
    assert trained == ["composite/joint/seed-2", "composite/tuned/seed-2"]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    records = read_results([outcome.results])
    assert [(one.arm, one.seed) for one in records] == [(arm, seed) for arm in ("joint", "tuned") for seed in range(3)]

    def stop(configs, folder):
        raise InterruptedRun("stopped")

    with pytest.raises(InterruptedRun):  # seeds that were asked for by mistake, none of which has begun
        execute("mine", replace(plan, seeds=range(8)), tmp_path, stop)
    more_of_one = replace(plan, arms=[replace(plan.arms[0], seeds=range(4)), plan.arms[1]], seeds=(0, 1, 2))
    assert len(read_results([execute("mine", more_of_one, tmp_path, in_turn).results])) == 7


def test_names_that_no_file_system_likes_are_only_names(plan, tmp_path):
    arms = [Arm("a/b: <c>", plan.arms[0].config), Arm("a b c", plan.arms[0].config), Arm("../up", plan.arms[0].config)]
    outcome = execute("mine", Plan(arms, [0]), tmp_path / "out", in_turn)
    assert [record.arm for record in read_results([outcome.results])] == ["a/b: <c>", "a b c", "../up"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_changes_are_named_as_one_would_write_them(tiny):
    other = replace(tiny, seed=3, training=replace(tiny.training, clip=2.0))
    assert changes(tiny, other) == {"training.clip": 2.0, "seed": 3}


def test_a_worker_that_is_killed_is_started_again_and_goes_on(tiny, tmp_path):
    long = replace(tiny, training=replace(tiny.training, steps=400, checkpoint_every=20))
    script = (
        "import sys\nfrom pathlib import Path\nfrom latebloom import load_config\n"
        "from latebloom.studies.local import train_all\n"
        "if __name__ == '__main__':\n"
        "    print(train_all({'a': load_config(sys.argv[1])}, Path(sys.argv[2]), workers=1, device='cpu'))\n"
    )
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "config.json").write_text(json.dumps(long.to_json()))
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "config.json"), str(tmp_path / "out")]
    checkpoints = tmp_path / "out" / "a" / "checkpoints"
    deadline = time.monotonic() + 120
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not list(checkpoints.glob("step-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        (victim,) = workers_of(process.pid)
        os.kill(victim, signal.SIGKILL)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert said.strip() == "{}"
    resumed = json.loads((tmp_path / "out" / "a" / "environment.json").read_text())["resumed"]
    assert len(resumed) == 1


def _die(order, folder, device, words):
    os._exit(9)


def _die_in_a_word(order, folder, device, words):
    os.write(words.fileno(), struct.pack("!i", 1000) + b"a thousand bytes were promised")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("death", "status"), [(_die, 9), (_die_in_a_word, -9)])
def test_a_worker_that_dies_again_and_again_is_a_failure(tiny, tmp_path, monkeypatch, death, status):
    monkeypatch.setattr("latebloom.studies.local._work", death)
    seen = []
    failures = train_all({"a": tiny}, tmp_path, workers=1, device="cpu", observe=lambda name, one: seen.append(one))
    assert failures == {"a": f"its process ended 3 times, at last with status {status}"}
    assert [one.phase for one in seen] == ["failed"]


def test_the_command_leaves_results_and_a_page_also_where_a_run_fails(tiny, tmp_path, capsys):
    joint = replace(tiny, delay=None)
    wild = replace(joint, training=replace(tiny.training, full=replace(tiny.training.full, learning_rate=1e30)))
    for name, config in (("joint", joint), ("wild", wild)):
        (tmp_path / f"{name}.json").write_text(json.dumps(config.to_json()))
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nfrom latebloom import load_config\n"
        "from latebloom.studies.plan import Arm, Plan, study\n"
        f"here = Path({str(tmp_path)!r})\n"
        "@study('mine')\ndef mine(scale):\n"
        "    of_its_own = {'wild': range(3)}\n"
        "    arms = [Arm(name, load_config(here / f'{name}.json'), seeds=of_its_own.get(name, ()))\n"
        "            for name in ('joint', 'wild')]\n"
        "    return Plan(arms, seeds=range(5))\n"
    )
    out = tmp_path / "out"
    words = ["--scale", "tiny", "--seeds", "1", "--device", "cpu", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(["study", str(tmp_path / "mine.py"), *words])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert "2 arms x 1 seed" in said.out
    assert "2 runs: 1 done, 0 running, 1 failed, composite/joint: step 24/24 done" in said.err
    assert f"failed: {out / 'composite' / 'wild' / 'seed-0'}: " in said.out
    assert "<html" in (out / "report" / "index.html").read_text()[:300]
    assert [one.failure is None for one in read_results([out / "results.parquet"])] == [True, False]
    assert "Continues" not in said.err
    with pytest.raises(SystemExit):
        main(["study", str(tmp_path / "mine.py"), *words])
    counts = "1 of 2 runs are finished, 1 interrupted or failed"
    assert capsys.readouterr().err.startswith(f"Continues in {out}: {counts}.\n")


def test_a_study_that_goes_on_says_how_many_runs_are_finished_and_left(plan, tmp_path):
    def begin(name: str, *files: str) -> None:
        (tmp_path / name).mkdir(parents=True)
        for file in ("config.json", *files):
            (tmp_path / name / file).touch()

    assert describe_begun(plan, tmp_path) == ""
    begin("tuning/composite/tuned/choice-0/seed-9")
    assert describe_begun(plan, tmp_path) == (
        f"Continues in {tmp_path}: 0 of 6 runs are finished, 1 interrupted or failed, 5 not begun"
    )
    paused = tmp_path / "tuning/composite/tuned/choice-0/seed-9/checkpoints"
    paused.mkdir()
    save_checkpoint(paused, {}, {"step": 4, PAUSED: True}, "0")
    begin("tuning/composite/tuned/choice-1/seed-9", "result.json")
    begin("tuning/composite/tuned/choice-2/seed-9", "result.json")  # beyond the range of the plan
    begin("composite/joint/seed-0", "result.json")
    assert describe_begun(plan, tmp_path) == (
        f"Continues in {tmp_path}: 3 of 7 runs are finished, 1 paused in tuning, 3 not begun"
    )
    for name in ("joint/seed-1", "tuned/seed-0", "tuned/seed-1"):
        begin(f"composite/{name}", "result.json")
    assert describe_begun(plan, tmp_path) == f"All 4 runs in {tmp_path} are finished already"


def test_a_study_that_began_with_a_setting_without_effect_goes_on(plan, tmp_path, monkeypatch):
    """Earlier versions accepted such settings."""
    (arm, _) = plan.arms
    useless = replace(arm.config, training=replace(arm.config.training, attention_factor=0.5))
    with monkeypatch.context() as patch:
        patch.setattr("latebloom.config.RunConfig.check_effects", lambda config: None)
        train_plan("s", Plan([Arm("joint", useless)], seeds=(0,)), tmp_path / "old", workers=1, device="cpu")
    outcome = train_plan("s", Plan([Arm("joint", useless)], seeds=(0, 1)), tmp_path / "old", workers=1, device="cpu")
    assert outcome.failures == {}
    assert len(read_results([outcome.results])) == 2
    with pytest.raises(ConfigError, match=r"training.attention_factor: 0.5 has no effect"):
        train_plan("s", Plan([Arm("joint", useless)], seeds=(0,)), tmp_path / "new", workers=1, device="cpu")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_paper_in_small_takes_minutes(tmp_path, capsys):
    began = time.monotonic()
    main(["study", "paper", "--scale", "tiny", "--device", "cpu", "--out", str(tmp_path)])
    assert time.monotonic() - began < 600  # on two cores
    said = capsys.readouterr()
    assert "failed" not in said.out + said.err
    plan = plan_of(find_study("paper"), "tiny")
    records = read_results([tmp_path / "results.parquet"])
    assert len(records) == plan.run_count
    assert all(record.evaluation is not None for record in records)
    assert len(json.loads((tmp_path / "choices.json").read_text())) == sum(bool(arm.choices) for arm in plan.arms)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Chosen settings" in page
    assert all(arm.name in page for arm in plan.arms)


def test_a_choice_whose_runs_have_begun_stands_with_its_figures_when_another_overtakes_it(two_rounds, tmp_path):
    plan = replace(two_rounds, finalists=1)
    execute("mine", plan, tmp_path / "whole", in_turn)
    (whole,) = json.loads((tmp_path / "whole" / "choices.json").read_text())

    def without_the_best(configs, folder):
        failed = {name: "no luck" for name in configs if f"choice-{whole['chosen']}/" in name}
        return in_turn({name: config for name, config in configs.items() if name not in failed}, folder) | failed

    out = tmp_path / "cut"
    execute("mine", plan, out, without_the_best)
    execute("mine", replace(plan, seeds=(0, 1)), out, in_turn)
    (after,) = json.loads((out / "choices.json").read_text())
    assert after["chosen"] == 1 - whole["chosen"]
    assert [one["seeds"] for one in after["choices"]] == [2, 2]  # both rounds of the one that stands, and of the best


def test_the_list_of_a_file_names_its_studies(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from latebloom import recipe\nfrom latebloom.studies.plan import Arm, Plan, study\n"
        "@study('mine')\ndef mine(scale):\n    'Whether it helps.'\n"
        "    return Plan([Arm('dat', recipe('demo-dat'))], seeds=range(7))\n"
    )
    main(["study", str(tmp_path / "mine.py"), "--list"])
    said = capsys.readouterr().out
    assert re.search(r"mine +Whether it helps\. +7 +- +7 +7", said)
    assert "timing" not in said


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (1, ""),
        (5, "with 5 shared seeds no difference between arms can be significant (p < 0.05, corrected for 3 "
         "comparisons); 7 could suffice"),
        (7, ""),
    ],
)  # fmt: skip
def test_that_seeds_are_too_few_is_said_before_the_work(tiny, seeds, said):
    assert _too_few(Plan([Arm(name, tiny) for name in "abc"], seeds=range(seeds))) == said


def test_seeds_are_too_few_only_if_no_pair_of_arms_shares_enough(tiny):
    def note(*seeds):
        return _too_few(Plan([Arm(str(i), tiny, seeds=of_arm) for i, of_arm in enumerate(seeds)], seeds=(0,)))

    assert note(range(20), range(20), range(20), range(3)) == ""  # three pairs can be told apart
    assert "with 2 shared seeds" in note(range(10), range(8, 18))
    assert "corrected for 3 comparisons" in note(range(4), range(4), range(4), range(1))
    assert note(range(10), range(10, 20)) == ""  # nothing to compare


def test_the_list_names_every_study(capsys):
    main(["study", "--list"])
    said = capsys.readouterr().out
    assert all(name in said for name in ("paper", "timing", "holding"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a name or a Python file"),
        (["papr"], "did you mean 'paper'"),
        (["paper", "--seeds", "0"], "seeds: 0 is not possible"),
        (["paper", "--address", "10.0.0.1:6379"], "--address 10.0.0.1:6379 requires --on ray"),
        (["paper", "--workers", "0"], "workers: 0 is not possible"),
        (["paper", "--out", "/proc/nothing"], "out: /proc/nothing cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["study", *words])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("change", ["moved", "removed", "replaced"])
def test_a_study_writes_nothing_where_its_folder_was(change, tiny, tmp_path):
    folder = tmp_path / "study"

    def train(configs, out):
        if change == "removed":
            shutil.rmtree(out)
        else:
            out.rename(tmp_path / "moved")
        if change == "replaced":
            folder.mkdir()
            (folder / "results.parquet").write_text("precious")
        return {}

    with pytest.raises(
        CheckpointError, match=r"study was moved, removed or replaced, .* while the study was running there"
    ):
        execute("s", Plan([Arm("joint", tiny)], range(1)), folder, train)
    assert [file.read_text() for file in folder.glob("*")] == ["precious"] * (change == "replaced")
