"""Live curves, with the real libraries and no network."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from latebloom import TrainedRun
from latebloom.api import run_with_bar
from latebloom.errors import ConfigError
from latebloom.trackers import TensorBoard, Tracked, Tracker


def trained_with(name: str, config, folder: Path, **environment: str) -> None:
    """`latebloom train --track NAME`, as a user would."""
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    command = [sys.executable, "-m", "latebloom", "train", "--config", "config.json", "--out", "run"]
    ran = subprocess.run(
        [*command, "--device", "cpu", "--track", name],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def expected(run: Path) -> dict[str, dict[int, float]]:
    """What a tracker should have been told, from the files that the run keeps anyway."""
    told: dict[str, dict[int, float]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name in ("loss", "loss_sum", "loss_recall", "gradient_norm", "learning_rate"):
            if name in line:
                told.setdefault(f"train/{name}", {})[line["step"]] = line[name]
        for length, values in line.get("check", {}).items():
            for name, value in values.items():
                told.setdefault(f"check/{length}/{name}", {})[line["step"]] = value
    seen = TrainedRun.load(run).evaluation
    told["test/reach"] = {24: seen.reach}
    for count in seen.counts:
        told[f"test/{count.length}/accuracy"] = {24: count.accuracy}
        told |= {f"test/{count.length}/{name}": {24: count.accuracy_of(name)} for name in count.answers}
    return told


def assert_same(found: dict[str, dict[int, float]], run: Path) -> None:
    wanted = expected(run)
    assert found.pop("train/attention_is_in") == {step: float(step > 12) for step in wanted["train/loss"]}
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert found[name] == pytest.approx(points, rel=1e-6), name


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    found = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        assert len({point.step for point in points}) == len(points), f"{name} has a step twice"
        found[name] = {point.step: point.value for point in points}
    return found


def test_tensorboard_has_the_runs_numbers(tiny, tmp_path):
    run_with_bar(tiny, tmp_path / "run", device="cpu", track="tensorboard")
    assert_same(scalars(tmp_path / "run" / "tensorboard"), tmp_path / "run")


def test_tensorboard_shows_a_resumed_run_once(tiny, tmp_path):
    first = TensorBoard().build(tmp_path, tiny, 0)
    for step in range(1, 11):
        first.log({"train/loss": 1.0}, step=step)
    first.finish()
    second = TensorBoard().build(tmp_path, tiny, 5)
    for step in range(6, 9):
        second.log({"train/loss": 2.0}, step=step)
    second.finish()
    found = scalars(tmp_path / "tensorboard")["train/loss"]
    assert found == {step: 1.0 if step <= 5 else 2.0 for step in range(1, 9)}


def test_a_finished_run_writes_nothing_more(tiny, tmp_path):
    run_with_bar(tiny, tmp_path / "run", device="cpu")
    run_with_bar(tiny, tmp_path / "run", device="cpu", track="tensorboard")
    assert not (tmp_path / "run" / "tensorboard").exists()


READ_WANDB = """
import json, sys
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

store, found = DataStore(), {}
store.open_for_scan(sys.argv[1])
while (data := store.scan_data()) is not None:
    record = Record()
    record.ParseFromString(data)
    items = {(item.nested_key or [item.key])[0]: json.loads(item.value_json) for item in record.history.item}
    for name, value in items.items():
        if not name.startswith("_"):
            found.setdefault(name, {})[items["_step"]] = value
print(json.dumps(found))
"""


def test_wandb_keeps_the_runs_numbers_offline(tiny, tmp_path):
    trained_with("wandb", tiny, tmp_path, WANDB_SILENT="true")
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    ran = subprocess.run([sys.executable, "-c", READ_WANDB, str(kept)], capture_output=True, text=True, check=True)
    found = {
        name: {int(step): value for step, value in points.items()} for name, points in json.loads(ran.stdout).items()
    }
    assert_same(found, tmp_path / "run")


READ_TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage

print(json.dumps(SQLiteStorage.get_logs("latebloom", sys.argv[1])))
"""


def test_trackio_has_the_runs_numbers_in_its_database(tiny, tmp_path):
    place = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    trained_with("trackio", tiny, tmp_path, **place)
    command = [sys.executable, "-c", READ_TRACKIO, f"run-{tiny.hash}"]
    ran = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=True)
    found: dict[str, dict[int, float]] = {}
    for row in json.loads(ran.stdout):
        for name, value in row.items():
            if "/" in name:
                found.setdefault(name, {})[row["step"]] = value
    assert_same(found, tmp_path / "run")


def test_an_unknown_or_absent_tracker_is_one_sentence_before_anything_is_trained(tiny, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"track: 'tensorbord' is not known; did you mean 'tensorboard'\?"):
        run_with_bar(tiny, tmp_path / "run", track="tensorbord")
    with pytest.raises(ConfigError, match="track: wandb needs a folder to name the run after; give out"):
        run_with_bar(tiny, track="wandb")
    monkeypatch.setattr("latebloom.trackers.tracking.find_spec", lambda name: None)
    for name in Tracker.members:
        with pytest.raises(ConfigError, match=rf"track: {name} needs .* pip install 'latebloom\[{name}\]'"):
            Tracked(name, tmp_path / "run", replace(tiny, seed=1))
    assert not (tmp_path / "run").exists()


def test_every_tracker_is_an_extra():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(Tracker.members) <= set(project["optional-dependencies"])
