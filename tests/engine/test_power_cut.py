"""A power cut at any moment: a run that continues afterwards is bit for bit the run that was never interrupted.

The simulated disk keeps only what was flushed: the content of a file at its last fsync, and the names in a folder at
the folder's last fsync. A second form keeps every name at once, as some file systems do, and only flushed contents.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from simulated_disk import Disk
from synthetic import study

from latebloom import RunConfig, run
from latebloom.engine.loop import run_stacked
from latebloom.report.study import read_sections, write_report
from latebloom.results.file import read_results, write_results
from latebloom.studies.execute import execute
from latebloom.studies.plan import Arm, Plan


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_same_run(found: Path, expected: Path) -> None:
    for name in ("metrics.jsonl", "evaluation.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes()
    one, other = weights(found), weights(expected)
    assert all(torch.equal(one[name], other[name]) for name in one | other)


at_every_moment = pytest.mark.parametrize(
    "every_moment", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["at the end", "at every moment"]
)


def moments(disk: Disk, every_moment: bool) -> Sequence[int]:
    """Every moment, or two early ones and each one from the last checkpoint to the end."""
    count = len(disk.moments)
    return range(count) if every_moment else [3, count // 2, *range(count - 14, count)]


@at_every_moment
@pytest.mark.parametrize("every_name", [False, True], ids=["flushed names", "every name"])
def test_a_run_continues_after_a_power_cut(tiny: RunConfig, disk, tmp_path, monkeypatch, every_name, every_moment):
    run(tiny, disk.root / "run", device="cpu")
    monkeypatch.undo()
    for moment in moments(disk, every_moment):
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


@at_every_moment
def test_a_stack_loses_nothing_in_a_power_cut(tiny, disk, tmp_path, monkeypatch, every_moment):
    configs = {f"seed-{seed}": replace(tiny, seed=seed) for seed in (1, 2)}
    run_stacked(configs, disk.root / "runs", torch.device("cpu"))
    monkeypatch.undo()
    for moment in moments(disk, every_moment):
        after = tmp_path / f"after-{moment}"
        disk.restore(moment, after, every_name=moment % 2 == 1)
        run_stacked(configs, after / "runs", torch.device("cpu"))
        for name in configs:
            assert_same_run(after / "runs" / name, disk.root / "runs" / name)


@at_every_moment
def test_a_study_continues_after_a_power_cut_with_the_same_choice_and_results(
    tiny, disk, tmp_path, monkeypatch, every_moment
):
    """Its runs are tested above; `at the end` has each moment at which the study itself writes."""
    choices = (tiny, replace(tiny, training=replace(tiny.training, full=replace(tiny.training.full, warmup=2))))
    plan = Plan([Arm("dat", tiny, choices=choices)], range(1), tuning_seeds=range(9, 10))

    def train(configs, folder):
        for name, config in configs.items():
            run(config, folder / name, device="cpu")
        return {}

    def outcome(folder: Path) -> list:
        records = read_results([folder / "results.parquet", folder / "tuning.parquet"])
        return [(record.key, record.config_hash, record.evaluation) for record in records]

    if not every_moment:
        disk.note_writes_to("study.json", "choices.json", "results.parquet", "tuning.parquet")
    execute("s", plan, disk.root / "study", train)
    monkeypatch.undo()
    assert len(disk.moments) >= 8
    for moment in range(len(disk.moments)):
        after = tmp_path / f"after-{moment}"
        disk.restore(moment, after, every_name=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            execute("s", plan, after / "study", train)
        assert outcome(after / "study") == outcome(disk.root / "study")
        assert (after / "study" / "choices.json").read_bytes() == (disk.root / "study" / "choices.json").read_bytes()


def test_a_report_is_whole_or_has_no_page(disk, tmp_path, monkeypatch):
    write_results(tmp_path / "a.parquet", study(arms=("dat", "joint"), seeds=2))
    write_report(read_sections([tmp_path / "a.parquet"]), disk.root / "report")
    monkeypatch.undo()
    whole = {file.relative_to(disk.root): file.read_bytes() for file in disk.root.rglob("*") if file.is_file()}
    for every_name in (False, True):
        pages = []
        for moment in range(len(disk.moments)):
            after = tmp_path / f"after-{moment}-{every_name}"
            disk.restore(moment, after, every_name=every_name)
            if (after / "report" / "index.html").exists():
                pages.append(moment)
                assert {file: (after / file).read_bytes() for file in whole} == whole
        assert pages == [len(disk.moments) - 1]
