"""The command line, in real processes, as a user meets it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest

import latebloom as latebloom_package
from latebloom.cli import main
from latebloom.commands import command_names
from latebloom.errors import ConfigError
from latebloom.lengths import parse_lengths

SMALL = [
    "task.keys=64", "model.width=8", "model.blocks=1", "model.attention.heads=2", "training.length=4",
    "training.steps=20", "training.full.batch_size=4", "training.delayed.batch_size=4", "training.log_every=5",
    "training.checkpoint_every=4", "evaluation.sequences=16", "delay.until.step=10",
]  # fmt: skip


COMMANDS = command_names()
TRIGGERS = [name for name in latebloom_package.__all__ if name.startswith(("at_", "when"))]


def latebloom(*words: str, cwd: Path, check: int = 0) -> subprocess.CompletedProcess[str]:
    ran = commands.latebloom(*words, cwd=cwd)
    assert ran.returncode == check, ran.stdout + ran.stderr
    return ran


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    ran = latebloom("train", "--recipe", "demo-dat", "--out", "run", *SMALL, cwd=folder)
    assert "Attention was enabled at step 10: step 10 was reached. The loss jumps there, because the" in ran.stdout
    assert "Everything is in run" in ran.stdout
    for phase in ("delayed", "full"):
        assert f"Note: training.{phase}.warmup: a warm-up of 200 steps in a phase of 10 ends at 5%" in ran.stderr
    return folder / "run"


def test_training_again_shows_what_is_there(trained):
    ran = latebloom("train", "--out", "run", cwd=trained.parent)
    assert "run is finished already" in ran.stdout
    assert "warm-up" not in ran.stderr


def test_a_run_can_come_from_a_file(trained, tmp_path):
    config = json.loads((trained / "config.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps(config))
    ran = latebloom("train", "--config", "mine.json", "--seed", "3", "training.steps=12", cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mine-")
    assert f"Everything is in runs/{folder.name}" in ran.stdout
    kept = json.loads((folder / "config.json").read_text())
    assert (kept["seed"], kept["training"]["steps"]) == (3, 12)


def test_evaluate_reports_in_the_terminal_and_as_json(trained):
    ran = latebloom("evaluate", "run", "--lengths", "4,8,...,20", "--sequences", "10", cwd=trained.parent)
    for word in ("length", "95% interval", "sum", "recall", "reach:", "cliff:", "guessing", "20", "5x"):
        assert word in ran.stdout
    (file,) = trained.glob("evaluation-4-20-*.json")
    assert f"Numbers: run/{file.name}" in ran.stdout
    data = json.loads(file.read_text())
    assert [row["length"] for row in data["lengths"]] == [4, 8, 12, 16, 20]
    assert {"reach", "cliff", "training_length", "chance"} <= set(data)
    assert data["step"] == 20
    assert all(row["interval"][0] <= row["accuracy"] <= row["interval"][1] for row in data["lengths"])
    to_stdout = latebloom("evaluate", "run", "--lengths", "4", "--json", "-", cwd=trained.parent)
    assert json.loads(to_stdout.stdout)["lengths"][0]["length"] == 4
    deep = latebloom("evaluate", "..", cwd=trained.parent, check=2)
    assert "; the runs below it are " in deep.stderr  # two levels below


def test_evaluations_over_the_same_span_are_all_kept(trained):
    for lengths, sequences in (("6,18", "10"), ("6,12,18", "10"), ("6,18", "12"), ("6,18", "10")):
        latebloom("evaluate", "run", "--lengths", lengths, "--sequences", sequences, cwd=trained.parent)
    kept = [json.loads(file.read_text())["lengths"] for file in trained.glob("evaluation-6-18-*.json")]
    assert sorted((len(rows), rows[0]["sequences"]) for rows in kept) == [(2, 10), (2, 12), (3, 10)]


@pytest.mark.parametrize("inner", ["model", "checkpoints", "checkpoints/step-00000020", "config.json"])
@pytest.mark.parametrize("words", [["evaluate"], ["train", "--out"]])
def test_a_path_inside_a_run_is_answered_with_the_runs_folder(trained, words, inner):
    ran = latebloom(*words, f"run/{inner}", cwd=trained.parent, check=2)
    assert ran.stderr == f"latebloom: run/{inner} is inside a run; give the run's folder, run\n"
    if words == ["evaluate"]:
        ran = latebloom("evaluate", ".", cwd=trained / "model", check=2)
        assert ran.stderr == "latebloom: . is inside a run; give the run's folder, ..\n"


def test_a_folder_of_runs_is_answered_with_the_runs_in_it(trained, tmp_path):
    ran = latebloom("evaluate", ".", cwd=trained.parent, check=2)
    assert ran.stderr == "latebloom: . holds no run: there is no config.json in it; the runs below it are run\n"
    (tmp_path / "config.json").write_text('{"library": "latebloom", "model": {}}')
    ran = latebloom("evaluate", str(tmp_path), cwd=trained.parent, check=2)
    assert "holds no run: its config.json is damaged or not from a run" in ran.stderr


def test_list_shows_tasks_models_and_recipes(tmp_path):
    ran = latebloom("list", cwd=tmp_path)
    for word in ("composite", "modular_sum", "recall", "hybrid", "lstm", "transformer", "demo-dat", *TRIGGERS):
        assert re.search(rf"^  {word} +\w", ran.stdout, re.MULTILINE), word
    assert "model.layout=rm" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("Settings: latebloom list KIND or latebloom list NAME")


def test_list_shows_the_settings_of_a_kind_or_of_a_component(monkeypatch, capsys):
    def listed(*words: str) -> list[str]:
        main(["list", *words])
        return capsys.readouterr().out.splitlines()

    task, one = listed("task"), listed("mqar")
    assert any(line.startswith("    keys=") for line in task)
    assert one[0] == "task"
    assert one[1].startswith("  mqar  ")
    assert all(line.startswith("    ") for line in one[2:])
    assert set(one) < set(task)
    assert not any(line.startswith("    ") for line in listed())
    both = listed("lstm")  # a recurrence, and a model
    assert [line for line in both if not line.startswith(" ")] == ["recurrence", "model"]
    with pytest.raises(SystemExit):
        main(["list", "lsmt"])
    assert "list: 'lsmt' is not known; did you mean 'lstm'? choices: task, recurrence" in capsys.readouterr().err


def test_a_terminal_that_is_narrower_than_a_name_gets_the_overview(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "12")
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["list"])
    assert "  state_based_recall  " in capsys.readouterr().out


@pytest.mark.parametrize("width", [44, 80])
def test_the_overview_has_one_line_for_each_component_on_a_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 110
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= width


def test_the_list_names_every_study(capsys):
    main(["list", "study", "--brief"])
    named = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:] if line.startswith("  ")}
    main(["study", "--list"])
    told = capsys.readouterr().out
    assert {"paper", "language"} <= named
    assert all(name in told for name in named)


def test_the_pages_name_every_trigger():
    root = Path(__file__).parent.parent
    glossary = (root / "docs" / "glossary.md").read_text()
    (row,) = [line for line in glossary.splitlines() if line.startswith("| trigger |")]
    page = (root / "docs" / "your-model.md").read_text()
    for name in TRIGGERS:
        assert f"`{name}`" in row
        assert re.search(rf"^\|.*`{name}\(", page, re.MULTILINE), name


MISTAKES = {
    "unknown recipe": (["train", "--recipe", "dmo-dat"], "recipe: 'dmo-dat' is not known; did you mean 'demo-dat'?"),
    "unknown field": (["train", "--recipe", "demo-dat", "training.stps=4"], "did you mean steps?"),
    "wrong type": (["train", "--recipe", "demo-dat", "training.steps=many"], 'training.steps: "many" is not possible'),
    "heads": (["train", "--recipe", "demo-dat", "model.attention.heads=5"], "5 does not divide width 64; choices: 1,"),
    "length 1": (["train", "--recipe", "demo-dat", "training.length=1"], "training.length: 1 is not possible"),
    "late trigger": (
        ["train", "--recipe", "demo-dat", "delay.until.step=9999"],
        "delay.until: the switch at step 9999",
    ),
    "unwritable": (
        ["train", "--recipe", "demo-dat", "--out", "/proc/latebloom"],
        "out: /proc/latebloom cannot be written",
    ),
    "nothing": (["train"], "train: give --recipe NAME or --config FILE"),
    "no run to go on with": (["train", "--out", "runs/dta"], "of a run to continue; there is no runs/dta"),
    "both": (["train", "--recipe", "demo-dat", "--config", "x.json"], "exclude each other"),
    "tracker": (["train", "--recipe", "demo-dat", "--track", "tensorbord"], "track: 'tensorbord' is not known"),
    "track seeds": (
        ["train", "--recipe", "demo-dat", "--track", "wandb", "--seeds", "2"],
        "--track wandb and --seeds 2 exclude each other",
    ),
    "no file": (["train", "--config", "x.json"], "config: there is no file x.json"),
    "device": (["train", "--recipe", "demo-dat", "--device", "tpu9"], "device: 'tpu9' is not known"),
    "no run": (["evaluate", "nowhere"], "nowhere holds no run"),
    "demo field": (["demo", "model.widht=3"], "did you mean width?"),
    "demo out": (["demo", "--out", "/proc/latebloom"], "out: /proc/latebloom"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_status_2_and_nothing_written(mistake, tmp_path):
    words, sentence = MISTAKES[mistake]
    ran = latebloom(*words, cwd=tmp_path, check=2)
    assert sentence in ran.stderr
    assert ran.stderr.startswith("latebloom: ")
    assert len(ran.stderr.strip().splitlines()) == 1
    assert "Traceback" not in ran.stderr + ran.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ("", "lengths: '' names no length"),
        ("25,x", "lengths: 'x' in '25,x' is not a whole number above 0"),
        ("4,500", "lengths: 500 needs task.keys of 250 or more; this task has 64, enough for a length of 129"),
        ("1", "lengths: 1 is too short"),
    ],
)
def test_bad_lengths_are_refused(trained, lengths, sentence):
    ran = latebloom("evaluate", "run", "--lengths", lengths, cwd=trained.parent, check=2)
    assert sentence in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--recipee", "x"], "latebloom train has no --recipee; did you mean --recipe?"),
        (["train", "--seed", "x"], "--seed: 'x' is not possible; it must be a whole number"),
        (["evaluate"], "the following arguments are required: RUN"),
        (
            ["study", "paper", "--scale", "tny"],
            "--scale: invalid choice: 'tny' (choose from 'tiny', 'small', 'paper', 'large')",
        ),
        (["trainn"], f"there is no command 'trainn'; did you mean train? commands: {', '.join(COMMANDS)}"),
        ([], f"give a command: {', '.join(COMMANDS)} (see latebloom --help)"),
        (["--hlp"], "latebloom has no --hlp; did you mean --help?"),
    ],
)
def test_a_mistake_in_the_words_is_one_sentence_too(tmp_path, words, sentence):
    ran = latebloom(*words, cwd=tmp_path, check=2)
    assert sentence in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_help_names_every_command_the_version_and_completion(tmp_path):
    assert {"demo", "train", "evaluate", "inspect", "study", "report", "bench", "list"} <= set(COMMANDS)
    printed = latebloom("--help", cwd=tmp_path).stdout
    for command in COMMANDS:
        assert re.search(rf"^ +{command}\b", printed, re.MULTILINE), command
    assert "--version" in printed
    assert "latebloom completion bash" in printed


COMPLETE = """
latebloom() {{ {python} -m latebloom "$@"; }}
eval "$(latebloom completion bash)"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_latebloom
echo "${{COMPREPLY[@]}}"
complete -p latebloom
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("latebloom tra", "train"),
        ("latebloom lm ev", "evaluate"),
        ("latebloom --v", "--version"),
        ("latebloom train --rec", "--recipe"),
        ("latebloom study --scale ''", "tiny small paper large"),
        ("latebloom completion z", "zsh"),
        ("latebloom evaluate runs/m", ""),  # bash completes the name of a file
        ("latebloom train --out --", ""),
    ],
)
def test_bash_completes_commands_options_and_values(words, completed):
    script = COMPLETE.format(python=sys.executable, words=words)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [completed, "complete -o default -F _latebloom latebloom"]
    assert ran.stderr == ""


@pytest.mark.parametrize("words", ["list", "--help", "completion bash", "train --out run", "report run"])
def test_a_closed_pipe_ends_a_command_quietly(words, trained):
    """Whether the output is written by print, by argparse or by rich."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "latebloom", *words.split()]
    ran = subprocess.run(command, cwd=trained.parent, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert ran.stderr == ""
    assert ran.returncode == 141 or (words == "--help" and ran.returncode == 0)  # argparse ignores the error


def test_the_first_line_of_a_list_can_be_taken(tmp_path):
    script = f"{sys.executable} -m latebloom list | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.rstrip() == "task"
    assert ran.stderr == ""
    assert ran.returncode in (0, 141)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_happens_without_an_option_in_words(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: latebloom {command}" in said
    assert not re.search(r"None|default:\s+\)", said)


def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(trained):
    ran = latebloom("evaluate", "run", "--json", "run", cwd=trained.parent, check=2)
    assert "json: run is not a file that could be written" in ran.stderr


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "latebloom", "train", "--recipe", "demo-dat", "--out", "run", *SMALL]
    command += ["training.steps=100000"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not list((tmp_path / "run" / "checkpoints").glob("step-*")):
        time.sleep(0.05)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "and saved; continue with: latebloom train --out run" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("25", [25]),
        ("25,50", [25, 50]),
        ("25, 50, ..., 125", [25, 50, 75, 100, 125]),
        ("2,3,…,6,10", [2, 3, 4, 5, 6, 10]),
    ],
)
def test_lengths_as_a_person_writes_them(text, lengths):
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text", ["...,5", "5,...,9", "1,2,...", "2,4,...,9", "4,2,...,0", "9,8,...,1", "0", "-3", "1.5"]
)
def test_lengths_that_make_no_row(text):
    with pytest.raises(ConfigError, match="lengths:"):
        parse_lengths(text)


def test_lengths_with_two_dots_say_what_is_valid():
    with pytest.raises(ConfigError, match=r"'\.\.' in '8,16,\.\.,64' is not .*; write 25,50,100 or 25,50,\.\.\.,400"):
        parse_lengths("8,16,..,64")
