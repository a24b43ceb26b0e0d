"""A power cut at any moment: a run that continues afterwards is bit for bit the run that was never interrupted.

The simulated disk keeps only what was flushed: the content of a file at its last fsync, and the names in a folder at
the folder's last fsync. A second form keeps every name at once, as some file systems do, and only flushed contents.
"""

import os
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from latebloom import RunConfig, run
from latebloom.engine.loop import run_stacked


@dataclass
class Disk:
    """Everything under `root` that is on disk after each fsync."""

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    """By inode."""
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    """The names in each folder and their inodes."""
    moments: list[tuple[dict[int, bytes], dict[int, dict[str, int]], dict[int, dict[str, int]]]] = field(
        default_factory=list
    )
    """After each fsync: the flushed contents, the flushed names, and all names."""

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            self.names[path.stat().st_ino] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self.contents[path.stat().st_ino] = path.read_bytes()
        present = {
            folder.stat().st_ino: {one.name: one.stat().st_ino for one in folder.iterdir()}
            for folder in [self.root, *(one for one in self.root.rglob("*") if one.is_dir())]
        }
        self.moments.append((dict(self.contents), dict(self.names), present))

    def restore(self, moment: int, into: Path, *, every_name: bool) -> None:
        """Make the folder that is found after a power cut."""
        contents, flushed, present = self.moments[moment]
        names = present if every_name else flushed
        folders = present.keys() | flushed.keys()

        def fill(inode: int, folder: Path) -> None:
            folder.mkdir()
            for name, inner in names.get(inode, {}).items():
                if inner in folders:
                    fill(inner, folder / name)
                else:
                    (folder / name).write_bytes(contents.get(inner, b""))

        fill(self.root.stat().st_ino, into)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    root = tmp_path / "disk"
    root.mkdir()
    simulated = Disk(root)
    fsync, kept = os.fsync, []

    def note_and_sync(descriptor: int) -> None:
        kept.append(os.dup(descriptor))  # the number of an inode is used again unless something has it open
        fsync(descriptor)
        simulated.fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    yield simulated
    for descriptor in kept:
        os.close(descriptor)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_same_run(found: Path, expected: Path) -> None:
    for name in ("metrics.jsonl", "evaluation.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes()
    one, other = weights(found), weights(expected)
    assert all(torch.equal(one[name], other[name]) for name in one | other)


def last_moments(disk: Disk) -> list[int]:
    """Two early moments, and each one from the last checkpoint to the end."""
    count = len(disk.moments)
    return [3, count // 2, *range(count - 14, count)]


@pytest.mark.parametrize("every_name", [False, True], ids=["flushed names", "every name"])
def test_a_run_continues_after_a_power_cut(tiny: RunConfig, disk, tmp_path, monkeypatch, every_name):
    run(tiny, disk.root / "run", device="cpu")
    monkeypatch.undo()
    for moment in last_moments(disk):
        after = tmp_path / f"after-{moment}"
        disk.restore(moment, after, every_name=every_name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was damaged and is restored
            trained = run(tiny, after / "run", device="cpu")
        assert_same_run(after / "run", disk.root / "run")
        assert trained.evaluation == run(tiny, disk.root / "run", device="cpu").evaluation


def test_a_finished_run_needs_nothing_after_a_power_cut(tiny, disk, tmp_path, monkeypatch):
    run(tiny, disk.root / "run", device="cpu")
    monkeypatch.undo()
    disk.restore(-1, tmp_path / "after", every_name=False)
    assert (tmp_path / "after" / "run" / "result.json").read_bytes() == (disk.root / "run" / "result.json").read_bytes()
    run(tiny, tmp_path / "after" / "run", device="cpu")  # warns of no damage
    assert_same_run(tmp_path / "after" / "run", disk.root / "run")


def test_a_stack_loses_nothing_in_a_power_cut(tiny, disk, tmp_path, monkeypatch):
    configs = {f"seed-{seed}": replace(tiny, seed=seed) for seed in (1, 2)}
    run_stacked(configs, disk.root / "runs", torch.device("cpu"))
    monkeypatch.undo()
    for moment in last_moments(disk):
        after = tmp_path / f"after-{moment}"
        disk.restore(moment, after, every_name=False)
        run_stacked(configs, after / "runs", torch.device("cpu"))
        for name in configs:
            assert_same_run(after / "runs" / name, disk.root / "runs" / name)
