"""From run folders to records, with runs that really ran."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebloom import Evaluation, RunConfig, run
from latebloom.errors import CheckpointError
from latebloom.results.collect import StudyRun, collect, collected_before, read_curve, thin
from latebloom.results.file import read_results, write_results
from latebloom.results.record import CurvePoint
from latebloom.validation import read_settings


@pytest.fixture
def finished(tiny, tmp_path) -> StudyRun:
    run(tiny, tmp_path / "dat", device="cpu")
    return StudyRun("small", "composite", "dat", tiny, tmp_path / "dat")


def test_a_finished_run_is_collected_with_all_that_its_folder_says(finished, tiny, tmp_path):
    found = collect(finished)
    assert (found.study, found.task, found.arm, found.seed) == ("small", "composite", "dat", tiny.seed)
    assert found.training_length == 5
    written = json.loads((finished.folder / "evaluation.json").read_text())
    assert found.evaluation == Evaluation.from_json(written)
    assert (found.switch_step, found.steps, found.stacked, found.failure) == (12, 24, 1, None)
    assert found.seconds is not None
    assert found.seconds > 0
    assert read_settings(RunConfig, json.loads(found.config)) == tiny
    assert found.config_hash == tiny.hash
    assert found.versions is not None
    assert found.versions.startswith("latebloom ")
    assert "torch" in found.versions
    assert "cores" in (found.machine or "")
    write_results(tmp_path / "a.parquet", [found])
    (read,) = read_results([tmp_path / "a.parquet"])
    assert replace(read, curve=()) == replace(found, curve=())
    for ours, theirs in zip(read.curve, found.curve, strict=True):
        assert ours._replace(value=0.0) == theirs._replace(value=0.0)
        assert ours.value == pytest.approx(theirs.value, rel=1e-6)


def test_the_curve_is_that_of_the_metrics(finished):
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    beyond = [(line["step"], line["check"]["15"]["sum"]) for line in lines if "check" in line]
    curve = collect(finished).curve
    assert [(p.step, p.value) for p in curve if p.measure == "loss"] == losses
    assert [(p.step, p.value) for p in curve if (p.measure, p.length) == ("accuracy_sum", 15)] == beyond
    assert len(losses) >= 8
    assert len(beyond) == 3


def test_the_command_repeats_the_run(finished, tmp_path):
    command = collect(finished).command
    assert command.count("latebloom train") == 1
    here = command.replace("latebloom train", f"{sys.executable} -m latebloom train")
    ran = subprocess.run(["sh", "-c", here], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    (again,) = (tmp_path / "runs").iterdir()
    assert again.name == f"run-{finished.config.hash}"
    assert (again / "evaluation.json").read_bytes() == (finished.folder / "evaluation.json").read_bytes()


def test_a_run_that_is_not_finished_says_so(tiny, tmp_path):
    absent = collect(StudyRun("s", "t", "a", tiny, tmp_path / "none"))
    assert (absent.evaluation, absent.failure) == (None, "not started")
    assert absent.config_hash == tiny.hash
    assert "latebloom train --config -" in absent.command
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text(json.dumps(tiny.to_json()))
    half = StudyRun("s", "t", "a", tiny, tmp_path / "half")
    assert collect(half).failure == "stopped before its end"
    assert collect(half, "the loss was no longer a number").failure == "the loss was no longer a number"


def test_a_folder_of_another_run_or_a_damaged_one_is_refused(finished, tiny):
    with pytest.raises(CheckpointError, match=f"holds another run .{tiny.hash}. than the study says"):
        collect(replace(finished, config=replace(tiny, seed=9)))
    with open(finished.folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "loss": ')
    with pytest.raises(CheckpointError, match=r"is damaged: metrics.jsonl is missing or was changed"):
        collect(finished)
    Path(finished.folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"is damaged: manifest.json is missing"):
        collect(finished)
    result = finished.folder / "result.json"  # earlier versions had no manifest
    result.write_text(json.dumps({k: v for k, v in json.loads(result.read_text()).items() if k != "manifest"}))
    with pytest.raises(CheckpointError, match=r"metrics.jsonl is damaged in line \d+"):
        collect(finished)
    Path(finished.folder / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"is damaged: metrics.jsonl is missing"):
        collect(finished)


def test_a_run_is_read_once_unless_it_was_changed(finished, tmp_path):
    """Collecting is incremental: a results file says by digests which runs its numbers are of."""
    file = tmp_path / "a.parquet"
    assert collected_before(file) == {}
    write_results(file, [collect(finished)])
    (finished.folder / "metrics.jsonl").unlink()  # not needed again
    renamed = replace(finished, arm="other", against=("joint",))
    again = collect(renamed, before=collected_before(file))
    (read,) = read_results([file])
    assert again == replace(read, arm="other", against=("joint",))
    with pytest.raises(CheckpointError, match="holds another run"):
        collect(replace(finished, config=replace(finished.config, seed=9)), before=collected_before(file))
    manifest = finished.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("\n", "\n\n"))
    with pytest.raises(CheckpointError, match=r"metrics.jsonl is missing"):
        collect(finished, before=collected_before(file))
    file.write_bytes(b"damaged")
    assert collected_before(file) == {}


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=450), st.integers(1, 120))
def test_a_thinned_curve_keeps_the_mean_and_the_last_step(values, most):
    points = [CurvePoint("loss", None, 3 * i, value) for i, value in enumerate(values)]
    thinned = thin(points, most)
    assert 1 <= len(thinned) <= most
    assert thinned[-1].step == points[-1].step
    assert [point.step for point in thinned] == sorted({point.step for point in thinned})
    size = -(-len(points) // most)
    weights = [size] * (len(thinned) - 1) + [len(points) - size * (len(thinned) - 1)]
    total = sum(point.value * weight for point, weight in zip(thinned, weights, strict=True))
    assert total == pytest.approx(sum(values), abs=1e-6)
    if len(points) <= most:
        assert thinned == points


def test_a_line_that_is_no_measurement_is_passed_over():
    assert read_curve(['{"step": 20, "switch": "step 20 was reached"}'], "here") == ()
