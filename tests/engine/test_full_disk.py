"""A disk that fills up while a run writes: one sentence, nothing lost, and the same command goes on."""

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from failing_calls import failing, raise_error
from safetensors import SafetensorError

from latebloom import LatebloomError, run
from latebloom.cli import main
from latebloom.engine import checkpoint, files
from latebloom.errors import DiskError, DiskFullError, catch_write_errors
from latebloom.results.file import write_results

SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = "mount -t tmpfs -o size=2m tmpfs {folder}"


class Disk:
    """Lets a number of files be written, and of the one after them the first half."""

    def __init__(self, monkeypatch) -> None:
        self.files_left = sys.maxsize
        self._write = files.write_flushed
        for module in (checkpoint, files):
            monkeypatch.setattr(module, "write_flushed", self.write)

    def write(self, path, content) -> None:
        self.files_left -= 1
        if self.files_left < 0:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self._write(path, content)


@pytest.mark.parametrize("files", [0, 1, 3, 5, 8, 12, 15, 20])
def test_whichever_file_meets_it_the_run_goes_on_when_there_is_room(tiny, tmp_path, monkeypatch, files):
    disk = Disk(monkeypatch)
    disk.files_left = files
    with pytest.raises(DiskFullError, match=f"the disk is full: {tmp_path} could not be written; free some space"):
        run(tiny, tmp_path, device="cpu")
    assert not list(tmp_path.rglob(".writing-*"))  # no half of a file takes what room there is
    disk.files_left = sys.maxsize
    assert run(tiny, tmp_path, device="cpu").evaluation == run(tiny, device="cpu").evaluation


ERRORS = ("EIO", "EDQUOT", "EROFS", "EFBIG", "EACCES", "EMFILE", "ESTALE", "ENOTCONN", "ETIMEDOUT", "ENODEV", "EAGAIN")


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("file", ["metrics.jsonl", ".writing-result.json"])
def test_every_error_of_a_write_names_the_file_and_the_run_goes_on(file, name, tiny, tmp_path, monkeypatch):
    """A write and a flush fail without the name of the file, on a network disk with errors of the network."""
    number, path, fsync = getattr(errno, name), tmp_path / file, os.fsync

    def fail(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DiskError) as caught:
            run(tiny, tmp_path, device="cpu")
    place = tmp_path if name == "EDQUOT" else path
    assert f"{place} could not be written" in str(caught.value)
    assert run(tiny, tmp_path, device="cpu").result["steps"] == 24


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_folder_that_cannot_be_looked_at_is_one_sentence(number, tiny, tmp_path):
    with (
        failing("stat", 0, raise_error(number)),
        pytest.raises(LatebloomError, match=r"run.config.json cannot be read"),
    ):
        run(tiny, tmp_path / "run", device="cpu")


def test_the_old_file_stays_where_the_new_one_has_no_room(tmp_path, monkeypatch):
    files.write_json(tmp_path / "a.json", "old")
    write_results(tmp_path / "results.parquet", [])
    before = (tmp_path / "results.parquet").read_bytes()
    Disk(monkeypatch).files_left = 0
    with pytest.raises(OSError, match="No space left"):
        files.write_json(tmp_path / "a.json", "new")
    with pytest.raises(DiskFullError, match=r"the disk is full: .*results.parquet could not be written"):
        write_results(tmp_path / "results.parquet", [])
    assert (tmp_path / "a.json").read_text() == '"old"\n'
    assert (tmp_path / "results.parquet").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "results.parquet"]


def test_a_library_with_an_error_of_its_own_is_understood(tmp_path):
    with pytest.raises(DiskFullError), catch_write_errors(tmp_path):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    for number in (errno.EIO, errno.EACCES):
        said = rf"{tmp_path} could not be written \({os.strerror(number)}\)"
        with pytest.raises(DiskError, match=said), catch_write_errors(tmp_path):
            raise SafetensorError(f"Error while serializing: I/O error: any words (os error {number})")
    with pytest.raises(SafetensorError), catch_write_errors(tmp_path):
        raise SafetensorError("Error while deserializing header: invalid header (os error 2)")


def test_a_command_says_it_in_one_sentence(tiny, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text(json.dumps(tiny.to_json()))
    Disk(monkeypatch).files_left = 4
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "run"), "--device", "cpu"])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"latebloom: the disk is full: {tmp_path / 'run'} could not be written")


ON_A_SMALL_DISK = """
import os, sys
from pathlib import Path
from latebloom import TrainedRun, load_config, run
from latebloom.studies.local import train_all

if __name__ == "__main__":
    disk, config = Path(sys.argv[1]), load_config(sys.argv[2])
    def train(*names):
        return train_all(dict.fromkeys(names, config), disk / "runs", workers=1, device="cpu")
    def all_of(folder):
        return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert train("a") == {}
    finished = all_of(disk / "runs" / "a")
    room = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - int(sys.argv[3])))
    print(train("a", "b")["b"])
    (disk / "ballast").unlink()
    assert train("a", "b") == {}
    assert all_of(disk / "runs" / "a") == finished
    assert TrainedRun.load(disk / "runs" / "b").evaluation == TrainedRun.load(disk / "runs" / "a").evaluation
"""


@pytest.mark.parametrize("room", [60_000, 200_000])
def test_a_disk_that_is_really_full(tiny, tmp_path, room):
    (tmp_path / "disk").mkdir()
    mount = MOUNT.format(folder=tmp_path / "disk")
    if shutil.which(SMALL_DISK[0]) is None or subprocess.run([*SMALL_DISK, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    (tmp_path / "script.py").write_text(ON_A_SMALL_DISK)
    (tmp_path / "config.json").write_text(json.dumps(replace(tiny, delay=None).to_json()))
    command = f"{mount} && exec {sys.executable} {tmp_path}/script.py {tmp_path}/disk {tmp_path}/config.json {room}"
    ran = subprocess.run([*SMALL_DISK, command], capture_output=True, text=True, timeout=200)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(
        f"the disk is full: {tmp_path / 'disk' / 'runs' / 'b'} could not be written; free some space"
    )
