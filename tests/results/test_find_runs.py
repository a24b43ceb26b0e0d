"""The runs that probes measure."""

import json
from dataclasses import replace
from functools import partial

import pytest

from latebloom import run
from latebloom.errors import CheckpointError
from latebloom.results.find_runs import find_runs
from latebloom.results.probe_runs import subject_of
from latebloom.studies.execute import execute
from latebloom.studies.local import train_all
from latebloom.studies.plan import Arm, Plan


def test_a_run_of_a_study_that_was_changed_is_refused_and_not_left_out(tiny, tmp_path):
    """Its configuration is another one, so its results have no name for it."""
    quick = replace(tiny, training=replace(tiny.training, steps=8, check_every=4), delay=None)
    execute("s", Plan([Arm("joint", quick)], range(2)), tmp_path, partial(train_all, workers=1, device="cpu"))
    assert [one.config.seed for one in find_runs([tmp_path])] == [0, 1]
    (file,) = tmp_path.rglob("seed-1/config.json")
    file.write_text(file.read_text().replace('"seed": 1', '"seed": 5'))
    with pytest.raises(CheckpointError, match=r"seed-1 is damaged: config.json is missing or was changed"):
        find_runs([tmp_path])


@pytest.mark.parametrize("line", [b"\xff", b"[" * 100_000, b"9" * 5000], ids=["not text", "nested", "a long number"])
def test_damaged_metrics_of_a_run_without_digests_are_one_sentence(line, tiny, tmp_path):
    run(tiny, tmp_path, device="cpu")
    (tmp_path / "manifest.json").unlink()
    result = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(result | {"manifest": False}))
    (one,) = find_runs([tmp_path])
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(line)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl is damaged"):
        subject_of(one, "cpu")
