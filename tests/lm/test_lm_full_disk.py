"""A full disk, and other errors of the operating system, while language models are prepared, trained and tested: one
sentence, nothing lost, and the same command goes on to the same bits."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from failing_calls import failing, raise_error
from small_lm import SMALL, small_training, write_texts
from transformers import TrainerState

from latebloom.cli import main
from latebloom.engine import files
from latebloom.errors import CheckpointError, ConfigError, DiskError, UnreadableError
from latebloom.lm import trial
from latebloom.lm.checkpoints import newest_checkpoint
from latebloom.lm.corpus import Corpus
from latebloom.lm.pace import Cost
from latebloom.lm.prepare import prepare
from latebloom.lm.train import train

CALLS = ("fsync", "write", "open", "replace", "mkdir", "unlink", "listdir")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
SAVE_STATE = TrainerState.save_to_json


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("few"), packages=4, files=1, lines=20)


@pytest.mark.parametrize("name", CALLS)
def test_whichever_call_fails_the_corpus_is_continued(name, few, tmp_path):
    whole = contents(prepare([few], tmp_path / "whole", SMALL).folder)
    with failing(name, -1, lambda: None) as count:
        prepare([few], tmp_path / "counted", SMALL)
    assert count() > 0
    for after in range(count()):
        number = ERRORS[after % len(ERRORS)]
        out = tmp_path / f"{name}-{after}"
        with (
            failing(name, after, raise_error(number)),
            pytest.raises((DiskError, ConfigError, UnreadableError)) as caught,
        ):
            prepare([few], out, SMALL)
        said = str(caught.value)
        assert "\n" not in said
        assert "the disk is full: " in said or os.strerror(number) in said
        assert str(out) in said or str(few) in said
        if name != "unlink":  # then it is the removal that fails
            assert not list(out.rglob(".writing-*"))
        made = prepare([few], out, SMALL)
        assert contents(made.folder) == whole


def test_a_text_that_cannot_be_read_now_is_not_left_out(few, tmp_path, monkeypatch):
    """With it the corpus would be another, and the same command makes it."""
    read, path = Path.read_bytes, few / "package2" / "module0.py"

    def fail(file: Path) -> bytes:
        if file == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(file)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(ConfigError, match=rf"data: {path} cannot be read \(Input/output error\)"):
            prepare([few], tmp_path / "corpus", SMALL)
    assert prepare([few], tmp_path / "corpus", SMALL).manifest["left_out"] == {}


ON_A_SMALL_DISK = """
import os, shutil, sys
from pathlib import Path
sys.path.append({tests!r})
from small_lm import SMALL, small_training
from latebloom.errors import DiskError, UnreadableError
from latebloom.lm import prepare as preparing
from latebloom.lm.corpus import Corpus
from latebloom.lm.train import train

disk, texts, corpus = map(Path, sys.argv[1:])
settings = small_training(Corpus.load(corpus), steps=4, save_every=2, until="2")

def used():
    room = os.statvfs(disk)
    return (room.f_blocks - room.f_bavail) * room.f_frsize, room.f_bavail * room.f_frsize

def contents(out):
    made = {{str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}}
    return {{name: one for name, one in made.items() if name.startswith(("model", "tokens", "manifest", "metrics"))}}

def attack(work, shares):
    work(disk / "out")
    wanted, size = contents(disk / "out"), used()[0]
    assert wanted
    for share in shares:
        shutil.rmtree(disk / "out")
        (disk / "ballast").write_bytes(bytes(used()[1] - int(share * size)))
        try:
            work(disk / "out")
        except DiskError as error:
            print(error)
        (disk / "ballast").unlink()
        work(disk / "out")
        assert contents(disk / "out") == wanted, share
    shutil.rmtree(disk / "out")

preparing._check_room = lambda *_: None
attack(lambda out: preparing.prepare([texts], out, SMALL), (0.1, 0.4, 0.7, 0.9))
attack(lambda out: train(settings, out), (0.05, 0.25, 0.5, 0.7, 0.85))
"""


def test_a_disk_that_is_really_full(corpus, few, tmp_path):
    """Trainer, safetensors and torch meet it, each in its own way; the last words of the sentences are the same."""
    (disk := tmp_path / "disk").mkdir()
    small = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=8m tmpfs {disk}"
    if shutil.which(small[0]) is None or subprocess.run([*small, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    (tmp_path / "script.py").write_text(ON_A_SMALL_DISK.format(tests=str(Path(__file__).parent)))
    command = f"{mount} && exec {sys.executable} {tmp_path}/script.py {disk} {few} {corpus.folder}"
    ran = subprocess.run([*small, command], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = ran.stdout.splitlines()
    assert len(said) == 9
    assert all(f"{disk / 'out'} could not be written" in one for one in said)
    assert all(one.endswith("free some space and run the same command to continue") for one in said)


class Full:
    """A disk that has no room for files of one name, or another fault there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int = errno.ENOSPC) -> None:
        self.name, self.number = f"{files.TEMPORARY}{name}", number
        self._write = files.write_flushed
        monkeypatch.setattr(files, "write_flushed", self.write)

    def write(self, path: Path, content: bytes) -> None:
        if path.name == self.name:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(self.number, os.strerror(self.number), str(path))
        self._write(path, content)


def test_training_continues_after_an_error_at_each_kind_of_file(corpus, tmp_path, monkeypatch):
    """Whoever writes it; Trainer's error does not name its file."""
    settings, run = small_training(corpus, steps=4, save_every=2), tmp_path / "run"

    def write_half(state: TrainerState, path: str) -> None:
        Path(path).write_text('{"half')
        raise OSError(number, os.strerror(number))

    for file, number in (
        ("settings.json", errno.EIO),
        ("trainer_state.json", errno.EDQUOT),
        ("trainer_state.json", errno.EIO),
        ("metrics.jsonl", errno.EDQUOT),
        ("result.json", errno.EIO),
    ):
        with monkeypatch.context() as patch:
            Full(patch, file, number)
            patch.setattr(TrainerState, "save_to_json", write_half if file == "trainer_state.json" else SAVE_STATE)
            with pytest.raises(DiskError) as caught:
                train(settings, run)
        is_named = number == errno.EIO and file != "trainer_state.json"
        assert f"{run / f'.writing-{file}' if is_named else run} could not be written" in str(caught.value)
    train(settings, run)
    train(settings, tmp_path / "whole")
    for file in ("metrics.jsonl", "model/model.safetensors", "model/config.json"):
        assert (run / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_checkpoint_that_cannot_be_read_now_stays(tmp_path, monkeypatch):
    state = tmp_path / "checkpoint-4" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text("{}")

    def fail(file: Path, *_: object, **__: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(CheckpointError, match=rf"{state} cannot be read \(Input/output error\); it may be whole"):
            newest_checkpoint(tmp_path)
    assert newest_checkpoint(tmp_path) == state.parent
    state.unlink()
    os.mkfifo(state)  # reading it would wait for ever
    with pytest.raises(CheckpointError, match="it is a pipe, not a plain file"):
        newest_checkpoint(tmp_path)


def complaint(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_an_evaluation_without_room_for_its_numbers_keeps_the_old_ones(corpus, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    train(small_training(corpus, steps=2), run)
    words = ["lm", "evaluate", str(run), "--multiples", "1", "--documents", "2", "--probes", "0"]
    main(words)
    before = (run / "evaluation.json").read_bytes()
    with monkeypatch.context() as patch:
        Full(patch, "evaluation.json")
        said = complaint(capsys, words)
    assert said == f"latebloom: json: {run / 'evaluation.json'} cannot be written (No space left on device)"
    assert (run / "evaluation.json").read_bytes() == before
    assert not list(run.rglob(".writing-*"))


@pytest.mark.parametrize("file", ["settings.json", "manifest.json", "plan.json", "evaluation.json", "trial.json"])
def test_a_trial_without_room_goes_on(file, tmp_path, capsys, monkeypatch):
    """What trains and measures is tested above; here a run is a file with a number."""

    def run_one(arm: str, seed: int, out: Path, plan: dict, deadline: float) -> None:
        done = out / "runs" / f"{arm}-{seed}" / "evaluation.json"
        if not done.exists():
            trained.append((arm, seed))
            files.make_folder(done.parent)
            files.write_json(done, {})

    texts = write_texts(tmp_path / "texts", packages=2, files=120, lines=10)
    trained: list[tuple[str, int]] = []
    said = {"sentence": "It cannot be told.", "advice": "Go on."}
    found = {"recommendation": said, "evaluations": {"joint": {}}}
    monkeypatch.setattr(trial, "run_one", run_one)
    monkeypatch.setattr(trial, "_collect", lambda *_: found)
    monkeypatch.setattr(trial, "measure", lambda *_: Cost(step=0.1, run=1, evaluation=0.5, window=1e-3))
    out = tmp_path / "trial"
    words = ["trial", "tiny", "--vocabulary", "320", "--processes", "1", "--data", str(texts), "--out", str(out)]
    words += ["--context", "16", "--minutes", "9"]
    with monkeypatch.context() as patch:
        Full(patch, file)
        place = out / "corpus" if file in ("settings.json", "manifest.json") else out
        assert complaint(capsys, words).startswith(
            f"latebloom: the disk is full: {place} could not be written; free some"
        )
    main(words)
    assert "It cannot be told. Go on." in capsys.readouterr().out
    assert len(trained) == len(set(trained)) + (file == "evaluation.json")  # that one run was not done
    assert json.loads((out / "trial.json").read_text()) == found
    assert Corpus.load(out / "corpus", verify=True).manifest["splits"]["train"]["tokens"] > 0
    assert not list(out.rglob(".writing-*"))
