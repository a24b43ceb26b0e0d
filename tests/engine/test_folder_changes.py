"""Folders that are moved, replaced or shared while a run trains there, and links in them."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from latebloom import TrainedRun, run
from latebloom.errors import CheckpointError


def train_and(config, folder: Path, change, step: int = 10):
    """Train, and change the folder when the run has reached a step."""
    pending = [change]

    def observe(progress) -> None:
        if progress.step >= step and pending:
            pending.pop()(folder)

    return run(config, folder, device="cpu", observe=observe)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("step", [10, 24], ids=["while it trains", "after its last step"])
@pytest.mark.parametrize("change", [shutil.rmtree, lambda folder: folder.rename(folder.parent / "elsewhere")])
def test_a_folder_that_is_gone_stops_the_run_and_is_not_made_again(change, step, tiny, tmp_path):
    with pytest.raises(CheckpointError, match="was moved, removed or replaced"):
        train_and(tiny, tmp_path / "run", change, step)
    assert not (tmp_path / "run").exists()


def test_a_moved_folder_continues_where_it_is(tiny, tmp_path):
    with pytest.raises(CheckpointError, match="was moved"):
        train_and(tiny, tmp_path / "run", lambda folder: folder.rename(tmp_path / "moved"))
    assert run(tiny, tmp_path / "moved", device="cpu").evaluation == run(tiny, device="cpu").evaluation


def test_nothing_is_written_into_a_folder_that_took_the_place(tiny, tmp_path):
    run(replace(tiny, seed=5), tmp_path / "other", device="cpu")
    before = contents(tmp_path / "other")

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "other", folder)

    with pytest.raises(CheckpointError, match="was moved, removed or replaced"):
        train_and(tiny, tmp_path / "run", change)
    assert contents(tmp_path / "run") == before


def test_a_second_trainer_after_the_lock_was_removed_stops_the_first_and_is_whole(tiny, tmp_path):
    def change(folder: Path) -> None:
        (folder / ".lock").unlink()
        run(tiny, folder, device="cpu")

    with pytest.raises(CheckpointError, match="or taken by another process"):
        train_and(tiny, tmp_path / "run", change)
    assert TrainedRun.load(tmp_path / "run").evaluation == run(tiny, device="cpu").evaluation


def test_removed_metrics_stop_the_run(tiny, tmp_path):
    with pytest.raises(CheckpointError, match=r"metrics.jsonl was removed or replaced while the run was training"):
        train_and(tiny, tmp_path / "run", lambda folder: (folder / "metrics.jsonl").unlink())


def test_a_line_of_another_process_in_the_metrics_stops_the_run(tiny, tmp_path):
    def change(folder: Path) -> None:
        with open(folder / "metrics.jsonl", "a") as file:
            file.write("{}\n")

    with pytest.raises(CheckpointError, match=r"metrics.jsonl was changed by another process"):
        train_and(tiny, tmp_path / "run", change)


@pytest.mark.parametrize("name", ["checkpoints", "model"])
def test_a_link_that_takes_the_place_of_a_folder_stops_the_run_and_nothing_is_written_there(name, tiny, tmp_path):
    (tmp_path / "victim").mkdir()

    def change(folder: Path) -> None:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).symlink_to(tmp_path / "victim")

    with pytest.raises(CheckpointError, match=f"{name} was replaced by a link while the run was training"):
        train_and(tiny, tmp_path / "run", change)
    assert contents(tmp_path / "victim") == {}


@pytest.mark.parametrize("change", ["removed", "of another run"])
def test_a_run_does_not_finish_beside_the_configuration_of_another(change, tiny, tmp_path):
    def replace_config(folder: Path) -> None:
        (folder / "config.json").unlink()
        if change == "of another run":
            (folder / "config.json").write_text(json.dumps(replace(tiny, seed=9).to_json()))

    with pytest.raises(CheckpointError, match=r"config.json was removed or replaced while the run was training"):
        train_and(tiny, tmp_path / "run", replace_config)
    (tmp_path / "run" / "config.json").unlink(missing_ok=True)
    assert run(tiny, tmp_path / "run", device="cpu").evaluation == run(tiny, device="cpu").evaluation


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_run_does_not_begin_in_a_folder_that_lost_its_configuration(is_finished, tiny, tmp_path):
    run(tiny, tmp_path / "run", device="cpu")
    (tmp_path / "run" / "config.json").unlink()
    if not is_finished:
        (tmp_path / "run" / "result.json").unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"its config.json is missing; put it back|belongs to another configuration"
    ):
        run(replace(tiny, seed=9), tmp_path / "run", device="cpu")
    assert contents(tmp_path / "run") == before


LINKS = (".lock", "metrics.jsonl", "config.json", "result.json", "model", "checkpoints", ".writing-result.json")


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_refused_and_what_it_points_to_is_untouched(name, tiny, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    (victim / "step-00000001").mkdir(parents=True)
    (victim / "step-00000001" / "state.json").write_text("precious")
    (victim / "file").write_text("precious")
    before = contents(victim)
    folder.mkdir()
    (folder / name).symlink_to(victim if name in ("model", "checkpoints") else victim / "file")
    with pytest.raises(CheckpointError, match=f"{name} is a link; the folder of a run holds plain files and folders"):
        run(tiny, folder, device="cpu")
    assert contents(victim) == before


def test_what_a_killed_process_left_is_removed(tiny, tmp_path):
    (tmp_path / "checkpoints" / ".writing-gone-step-00000005").mkdir(parents=True)
    (tmp_path / ".writing-config.json").write_text("{")
    run(tiny, tmp_path, device="cpu")
    assert not list(tmp_path.rglob(".writing-*"))


def test_a_finished_run_on_a_read_only_disk_is_returned(tiny, tmp_path, monkeypatch):
    trained = run(tiny, tmp_path, device="cpu")
    before = contents(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    assert run(tiny, tmp_path, device="cpu").evaluation == trained.evaluation
    assert contents(tmp_path) == before
