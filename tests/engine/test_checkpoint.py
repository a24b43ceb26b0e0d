"""Checkpoints: complete or absent, refused when damaged or foreign, never unpickled."""

import json
import os
import pickle

import pytest
import torch

from latebloom.engine import checkpoint
from latebloom.engine.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from latebloom.engine.files import write_json
from latebloom.errors import CheckpointError

TENSORS = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "random": {"cpu": torch.get_rng_state()}}


def test_what_is_saved_is_loaded(tmp_path):
    path = save_checkpoint(tmp_path, TENSORS, {"step": 7, "note": "x"}, "abc")
    tensors, state = load_checkpoint(path, ["abc"])
    assert state == {"step": 7, "note": "x"}
    assert torch.equal(tensors["model"]["weight"], TENSORS["model"]["weight"])
    assert torch.equal(tensors["random"]["cpu"], TENSORS["random"]["cpu"])
    assert tensors["random"]["cpu"].dtype == torch.uint8


def test_the_newest_is_found_and_the_older_ones_go(tmp_path):
    (tmp_path / ".writing-step-00000200").mkdir()
    for step in (5, 10, 100):
        save_checkpoint(tmp_path, TENSORS, {"step": step}, "abc")
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name == "step-00000100"
    assert sorted(os.listdir(tmp_path)) == ["step-00000010", "step-00000100"]


def test_an_old_checkpoint_that_cannot_be_removed_is_no_obstacle(tmp_path, monkeypatch):
    """As on a network file system, where a file that another process has open stays in its folder."""
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, ignore_errors: None)
    for step in range(1, 31):
        save_checkpoint(tmp_path, TENSORS, {"step": step}, "abc")
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-00000029", "step-00000030"]


@pytest.mark.parametrize("killed_at", range(12))
def test_a_write_that_is_cut_off_anywhere_leaves_the_old_checkpoint_and_nothing_that_looks_complete(
    tmp_path, killed_at, monkeypatch
):
    """Every file-system call of a save is made to fail in turn, as if the process died there."""

    class Died(BaseException):
        pass

    save_checkpoint(tmp_path, TENSORS, {"step": 1}, "abc")
    calls = 0

    def dying(original):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls > killed_at:
                raise Died
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(os, "rename", dying(os.rename))
        patch.setattr(checkpoint, "write_flushed", dying(checkpoint.write_flushed))
        try:
            save_checkpoint(tmp_path, TENSORS, {"step": 2}, "abc")
            finished = True
        except Died:
            finished = False
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    _, state = load_checkpoint(newest, ["abc"])
    assert state["step"] in ((2,) if finished else (1, 2))
    save_checkpoint(tmp_path, TENSORS, {"step": 2}, "abc")  # and the next attempt is not in its own way
    assert load_checkpoint(tmp_path / "step-00000002", ["abc"])[1] == {"step": 2}


def test_everything_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    """fsync of each file, then of the folder, then the rename, then fsync of the folder above."""
    calls = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor):
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}").rsplit("/", 1)[-1])
        fsync(descriptor)

    def note_rename(old, new):
        calls.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    save_checkpoint(tmp_path, TENSORS, {"step": 3}, "abc")
    assert calls == [
        "model.safetensors",
        "random.safetensors",
        "state.json",
        ".writing-step-00000003",
        "rename",
        tmp_path.name,
    ]


def damage_bytes(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def truncate(path):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: len(content) // 2])


def remove_file(path):
    (path / "random.safetensors").unlink()


def spoil_json(path):
    (path / "state.json").write_text("{")


def no_object(path):
    (path / "state.json").write_text("[1, 2]")


def other_format(path):
    header = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(header | {"format": 99}))


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def put_pickle(path):
    (path / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    (path / "state.json").write_bytes(pickle.dumps(Bomb()))


@pytest.mark.parametrize(
    "damage", [damage_bytes, truncate, remove_file, spoil_json, no_object, other_format, put_pickle]
)
def test_a_damaged_checkpoint_is_refused_with_one_sentence(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save_checkpoint(tmp_path, TENSORS, {"step": 7}, "abc")
    damage(path)
    with pytest.raises(CheckpointError, match="step-00000007") as caught:
        load_checkpoint(path, ["abc"])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exploded").exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, TENSORS, {"step": 7}, "abc")
    with pytest.raises(CheckpointError, match=r"belongs to another configuration \(abc, not xyz\)"):
        load_checkpoint(path, ["xyz"])


def test_steps_are_compared_as_numbers(tmp_path):
    for step in (99_999_999, 100_000_000):
        save_checkpoint(tmp_path, TENSORS, {"step": step}, "abc")
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name == "step-100000000"


def test_a_json_file_is_replaced_in_one_move(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    write_json(file, {"old": 1})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_json(file, {"new": 2})
    assert json.loads(file.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]
