"""What a new user gets wrong: each is one sentence with status 2 that says what to write, and harms nothing."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from latebloom import recipe, run
from latebloom.cli import main
from latebloom.commands import load_command
from latebloom.config import with_overrides
from latebloom.errors import Note


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run, not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    small = ["model.width=8", "model.blocks=1", "model.attention.heads=2", "training.length=4", "training.steps=20"]
    unwarmed = ["training.delayed.warmup=2", "training.full.warmup=2"]
    small += ["training.full.batch_size=4", "training.delayed.batch_size=4", "evaluation.sequences=16"]
    run(with_overrides(recipe("demo-dat"), [*small, "delay.until.step=10", *unwarmed]), folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch) -> Path:
    """A folder to work in, with a copy of the run in `run`."""
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.out == ""
    assert said.err.startswith("latebloom: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("latebloom: ").rstrip("\n")


TRAIN = ("train", "--recipe", "demo-dat")
WRONG = {
    "a number that is none": ((*TRAIN, "--seed", "1.5"), "--seed: '1.5' is not possible; it must be a whole number"),
    "seconds that are none": (("bench", "--seconds", "x"), "--seconds: 'x' is not possible; it must be a number (see"),
    "a seed below 0": ((*TRAIN, "--seed", "-1"), "seed: -1 is not possible; it must be from 0 to 2^63 - 1"),
    "too large a seed": (("demo", "--seed", "9" * 20), f"seed: {'9' * 20} is not possible; it must be from 0 to 2^63"),
    "an option of another command": (("evaluate", "run", "--seed", "3"), "latebloom evaluate has no --seed (see"),
    "a setting as an option": ((*TRAIN, "--steps", "9"), "has no --steps; settings are written FIELD=VALUE, such"),
    "a setting without its section": (
        (*TRAIN, "steps=100"),
        "steps: there is no such field (value 100); did you mean ",
    ),
    "neither true nor false": (
        (*TRAIN, "training.restart=maybe"),
        'training.restart: "maybe" is not possible; it must be true or false',
    ),
    "lengths as words": (
        ("evaluate", "run", "--lengths", "5", "10"),
        "unrecognized argument: 10; give one run, and the lengths as one word",
    ),
    "lengths with a blank": (("evaluate", "run", "--lengths", "5 9"), "is not a whole number above 0; write 25,50"),
    "an option without a value": (("train", "--recipe"), "--recipe: expected one argument (see latebloom train"),
    "no path": (("inspect",), "the following arguments are required: PATH (see latebloom inspect --help)"),
    "no sequences": (("evaluate", "run", "--sequences", "0"), "sequences: 0 is not possible; it must be 1 or more"),
    "a model of the Hub": (
        ("inspect", "bert-base-uncased"),
        "there is no bert-base-uncased on this machine; give a",
    ),
    "weights alone": (
        ("inspect", "run/model/model.safetensors"),
        "model.safetensors is no configuration; give the folder of a run, of a checkpoint or of a Transformers model, "
        "or its config.json; pickles such as .pt and .bin files are never opened",
    ),
    "a folder of no name": ((*TRAIN, "--out", ""), "out: '' names no folder"),
    "a demo in a run": (("demo", "--out", "run"), "out: run is the folder of a run; choose another with --out"),
    "a demo in a file": (("demo", "--out", "run/config.json"), "out: run/config.json is a file; choose another"),
    "a folder as a configuration": (
        ("train", "--config", "run"),
        "config: run is a folder; give a file, such as run",
    ),
    "another file as one": (
        ("train", "--config", "run/evaluation.json"),
        "is not the configuration of a run; it ha",
    ),
    "over the configuration": (
        ("evaluate", "run", "--json", "run/config.json"),
        "holds something else than an evalua",
    ),
    "over the run's own": (
        ("evaluate", "run", "--json", "run/evaluation.json"),
        "holds the run's own evaluation; nam",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_word_is_one_sentence(mistake, folder, capsys):
    words, sentence = WRONG[mistake]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert sentence in complaint(capsys, *words)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


CHANGED = "is missing or was changed after the run had finished"
DAMAGE = {
    "no model": ("model/model.safetensors", None, f"run is damaged: model/model.safetensors {CHANGED}"),
    "half a model": ("model/model.safetensors", "x", f"run is damaged: model/model.safetensors {CHANGED}"),
    "no evaluation": ("evaluation.json", None, f"run is damaged: evaluation.json {CHANGED}"),
    "another evaluation": ("evaluation.json", "[]", f"run is damaged: evaluation.json {CHANGED}"),
    "another result": ("result.json", "{}", f"run is damaged: result.json {CHANGED}"),
    "another manifest": ("manifest.json", "[]", f"run is damaged: manifest.json {CHANGED}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_one_sentence_and_its_checkpoint_restores_it(damage, folder, capsys):
    file, content, sentence = DAMAGE[damage]
    path = folder / "run" / file
    right = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    told = complaint(capsys, "evaluate", "run")
    assert sentence in told
    assert told.endswith("restore it from the last checkpoint with: latebloom train --out run")
    with pytest.warns(UserWarning, match=f"run: {file} was damaged and is restored from the last checkpoint"):
        main(["train", "--out", "run", "--device", "cpu"])
    if file not in ("result.json", "manifest.json"):  # these have the time and the second start of the run in them
        assert path.read_bytes() == right
    main(["evaluate", "run", "--lengths", "5"])


def test_a_run_on_a_read_only_disk_is_evaluated_and_only_a_file_that_was_named_is_missed(folder, monkeypatch, capsys):
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("latebloom.engine.files.write_flushed", refuse)
    with pytest.warns(Note, match=r"run cannot be written \(Read-only file system\), .*; name one with --json FILE"):
        main(["evaluate", "run", "--lengths", "4"])
    assert "reach" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", "run", "--lengths", "4", "--json", "mine.json"])
    assert "json: mine.json cannot be written (Read-only file system)" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("evaluate", "run"), ("train", "--out", "run")], ids=["evaluate", "train"])
@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", "{}", "run holds no run: its config.json is damaged or not from a run"),
        ("metrics.jsonl", "{}", f"run is damaged: metrics.jsonl {CHANGED}; remove run and train the run again"),
    ],
)
def test_what_no_checkpoint_restores_is_one_sentence(words, file, content, sentence, folder, capsys):
    (folder / "run" / file).write_text(content)
    assert sentence in complaint(capsys, *words)


def test_a_damaged_unfinished_run_is_one_sentence(folder, capsys):
    (folder / "run" / "result.json").unlink()
    (folder / "run" / "environment.json").write_text("[]")
    assert complaint(capsys, "train", "--out", "run") == "run/environment.json is damaged: there is no resumed in it"


def test_too_large_a_model_is_one_sentence(folder, capsys):
    words = ("train", "--recipe", "demo-joint", "model.width=1000000", "--out", "large")
    assert "training: this run needs at least" in complaint(capsys, *words)
    assert not (folder / "large").exists()
    told = complaint(capsys, *words, "--yes")
    assert "there is not enough memory for this; use smaller settings, such as model.width" in told


class Panic(BaseException):
    """What a library in Rust raises when it panics."""


@pytest.mark.parametrize("error", [RuntimeError("something else"), Panic("something else"), RuntimeError("\udcff")])
@pytest.mark.parametrize("has_temporary_folder", [True, False])
def test_an_error_that_nobody_foresaw_is_one_sentence_with_its_traceback_in_a_file_and_the_command_that_continues(
    error, has_temporary_folder, tmp_path, monkeypatch, capsys
):
    def fail(*words: object) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path if has_temporary_folder else tmp_path / "missing"))
    monkeypatch.setattr("latebloom.cli.parse", fail)
    with pytest.raises(SystemExit) as end:
        main(["train", "--out", "my run"])
    assert end.value.code == 1
    (log,) = tmp_path.iterdir()
    assert "raise error" in log.read_text()
    message = repr(str(error))[1:-1]
    assert capsys.readouterr().err == (
        f"latebloom: this is a mistake in latebloom or in a plugin ({type(error).__name__}: {message}); what was saved "
        f"before is complete; the traceback is in {log}; continue with: latebloom train --out 'my run'\n"
    )


def test_an_error_that_nobody_foresaw_is_one_sentence_where_no_file_can_be_written(monkeypatch, capsys):
    monkeypatch.setattr("latebloom.cli.NamedTemporaryFile", lambda **_: os.stat("/missing/folder"))
    monkeypatch.setattr("latebloom.cli.parse", lambda words: 1 / 0)
    with pytest.raises(SystemExit):
        main(["list"])
    assert "the traceback is in no file, because none could be written" in capsys.readouterr().err


def test_changes_may_stand_anywhere_between_the_options():
    parser, _ = load_command("train")
    options = parser.parse(["a=1", "--out", "b=2", "c=3", "--seed", "-1", "d=4", "--recipe=x", "e=5"])
    assert options.overrides == ["a=1", "c=3", "d=4", "e=5"]
    assert (str(options.out), options.seed, options.recipe) == ("b=2", -1, "x")


def test_a_run_from_changes_on_both_sides_of_an_option(folder, capsys):
    config = json.loads((folder / "run" / "config.json").read_text())
    (folder / "mine.json").write_text(json.dumps(config))
    main(["train", "training.steps=16", "--config", "mine.json", "delay.until.step=8", "--out", "other", "seed=5"])
    kept = json.loads((folder / "other" / "config.json").read_text())
    assert (kept["training"]["steps"], kept["delay"]["until"]["step"], kept["seed"]) == (16, 8, 5)
    assert "Everything is in other" in capsys.readouterr().out


def test_the_version_is_told():
    ran = subprocess.run([sys.executable, "-m", "latebloom", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == "latebloom 0.1.0\n"


def test_a_terminal_of_few_signs_is_no_reason_to_fail(folder):
    def latebloom(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(("-c", code) if code else ("-m", "latebloom")), *words]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})

    refused = latebloom("train", "--config", "é.json")
    assert refused.stderr == "latebloom: config: there is no file ?.json\n"
    chart = "import rich.console, latebloom as lb; from latebloom.report.terminal import print_chart;"
    chart += "e = lb.TrainedRun.load('run').evaluation; print_chart(rich.console.Console(), {'a': e, 'b': e})"
    drawn = latebloom(code=chart)
    assert drawn.returncode == 0, drawn.stderr
    assert "oxox" in drawn.stdout
    assert "100%:" in drawn.stdout


@pytest.mark.parametrize("command", ["evaluate", "report", "probe"])
def test_a_wrong_setting_of_a_run_names_its_file(command, tiny_run, tmp_path, capsys):
    data = tiny_run.to_json()
    data["seed"] = ""
    (tmp_path / "config.json").write_text(json.dumps(data))
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(SystemExit):
        main([command, str(tmp_path)])
    assert f"latebloom: {tmp_path / 'config.json'}: seed: " in capsys.readouterr().err
