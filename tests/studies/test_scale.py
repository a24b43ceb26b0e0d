"""The committed sizes of studies and reports are within their bounds, and the stand-in for training makes real runs."""

import json
from dataclasses import replace

from scale import CASES, RESULTS, StandIn, small

from latebloom import TrainedRun
from latebloom.engine.folder import RunFolder
from latebloom.results.verify import verify

ROWS = json.loads(RESULTS.read_text())["rows"]


def test_ten_thousand_runs_are_reported_in_two_gibibytes_and_on_a_page_that_opens_at_once():
    assert list(ROWS) == list(CASES)
    assert ROWS["report of 40"]["seconds"] <= 5
    large = ROWS["report of 10000"]
    assert large["seconds"] <= 60
    assert large["bytes"] < 2 * 2**30
    assert large["page"] < 8e6
    assert large["opens"] < 3


def test_a_study_of_ten_thousand_runs_reads_a_finished_run_once():
    rows = ROWS["study of 10000"]
    assert rows["first"]["slowest_update"] < 0.25
    assert rows["again"]["collecting"] < rows["first"]["collecting"]
    assert all(row["bytes"] < 3 * 2**30 for row in rows.values())


def test_the_runs_that_stand_in_are_sealed_as_real_ones(tmp_path):
    folder = RunFolder(tmp_path / "made")
    config = replace(small(), seed=7)
    StandIn(tmp_path / "source").make(folder, config, 3)
    assert TrainedRun.load(folder.path).config == config
    (folder.path / ".lock").touch()
    assert [one.problems for one in verify(folder.path)] == [()]
