"""What an earlier version left behind opens, continues to the same bits, evaluates and reports.

`make.py` says how the data were made. Where torch and the processor compute what they did there, weights, metrics and
evaluation are compared exactly; elsewhere up to rounding. The name of each test says which.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from outcomes import arithmetic, outcome

from latebloom import RunConfig, TrainedRun, inspect, load_config, run
from latebloom.cli import main
from latebloom.engine.loop import run_stacked
from latebloom.errors import CheckpointError
from latebloom.results.file import read_results
from latebloom.studies.execute import execute
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.stacks import run_in_stacks

CPU = torch.device("cpu")
DATA = Path(__file__).parent / "data"
ABOUT = json.loads((DATA / "about.json").read_text())
EXACT = ABOUT["torch"].partition("+")[0] == torch.__version__.partition("+")[0] and ABOUT["arithmetic"] == arithmetic()
RUNS = sorted(path.name for path in (DATA / "runs").iterdir())
STUDY_RUNS = [f"composite/{arm}/seed-{seed}" for arm in ("joint", "dat") for seed in (0, 1)]

pytestmark = pytest.mark.parametrize("exact", [EXACT], ids=["exact" if EXACT else "close"])


@pytest.fixture
def data(tmp_path) -> Path:
    """A copy of the data, which a test may continue."""
    shutil.copytree(DATA, tmp_path / "data")
    return tmp_path / "data"


def check(folder: Path, expected: Path, exact: bool) -> None:
    """Compare a finished run with what the earlier version made of it."""
    wanted, got = json.loads((expected / "outcome.json").read_text()), outcome(folder)
    # This version hashes a configuration in another way, and knows both hashes.
    config = load_config(folder / "config.json")
    assert config.matches(got["result"].pop("config_hash"))
    assert config.matches(wanted["result"].pop("config_hash"))
    assert got["result"].pop("manifest", True)  # the first version wrote none
    lines, wanted_lines = ((path / "metrics.jsonl").read_text().splitlines() for path in (folder, expected))
    if exact:
        assert got == wanted
        assert lines == wanted_lines
        return
    assert got["weights"].keys() == wanted["weights"].keys()
    rounded = ("reach", "cliff")
    assert {**got["result"], **dict.fromkeys(rounded)} == {**wanted["result"], **dict.fromkeys(rounded)}
    assert_close(got["evaluation"]["lengths"], wanted["evaluation"]["lengths"])
    assert_close([*map(json.loads, lines)], [*map(json.loads, wanted_lines)])


def assert_close(got: Any, wanted: Any, name: str = "") -> None:
    """Compare plain data; losses may differ by rounding, and few answers may be others."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for key in wanted:
            assert_close(got[key], wanted[key], key)
    elif isinstance(wanted, list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_close(one, other, name)
    elif name.startswith("loss") or name == "gradient_norm":
        assert got == pytest.approx(wanted, rel=1e-2)
    elif name == "correct":
        assert got == pytest.approx(wanted, abs=4)
    elif name in ("accuracy", "sum", "recall", "interval"):
        assert got == pytest.approx(wanted, abs=0.15)
    else:
        assert got == wanted


def read_configs(folder: Path) -> dict[str, RunConfig]:
    """Return the configurations of a stack's runs in the order in which they were stacked."""
    (members,) = folder.glob("stack-*/members.json")
    return {name: load_config(folder / name / "config.json") for name in json.loads(members.read_text())}


@pytest.mark.parametrize("name", [name for name in RUNS if name != "finished"])
def test_an_interrupted_run_continues(data, name, exact):
    folder = data / "runs" / name
    (before,) = (json.loads(file.read_text()) for file in folder.glob("checkpoints/*/state.json"))
    started = (folder / "metrics.jsonl").read_bytes()[: before["state"]["journal"]["metrics_bytes"]]
    main(["train", "--out", str(folder), "--device", "cpu"])
    assert (folder / "metrics.jsonl").read_bytes().startswith(started)  # it did not begin anew
    assert len(json.loads((folder / "environment.json").read_text())["resumed"]) == 1
    check(folder, DATA / "expected" / "runs" / name, exact)


def test_a_finished_run_opens_and_is_not_trained_again(data, exact):
    def observe(seen: object) -> None:
        pytest.fail(f"it is trained again: {seen}")

    folder = data / "runs" / "finished"
    files = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    trained = run(load_config(folder / "config.json"), folder, device="cpu", observe=observe)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == files
    assert trained.evaluation == TrainedRun.load(folder).evaluation
    assert trained.switch_step == 12


def test_a_finished_run_is_trained_to_the_same_result_from_the_beginning(tmp_path, exact):
    run(load_config(DATA / "runs" / "finished" / "config.json"), tmp_path / "again", device="cpu")
    check(tmp_path / "again", DATA / "expected" / "runs" / "finished", exact)


def test_a_finished_run_is_evaluated_inspected_and_reported(data, tmp_path, capsys, exact):
    folder = data / "runs" / "finished"
    trained = TrainedRun.load(folder)
    stored = json.loads((folder / "evaluation.json").read_text())
    assert_close(trained.evaluate(device="cpu").to_json(), stored)
    assert not exact or trained.evaluate(device="cpu").to_json() == stored
    main(["evaluate", str(folder), "--lengths", "5,10", "--json", "-", "--device", "cpu"])
    assert_close(json.loads(capsys.readouterr().out)["lengths"], stored["lengths"][:2])
    assert inspect(trained.model).parameters() == trained.result["parameters"]
    for path in (folder, folder / "model", folder / "checkpoints" / "step-00000024"):
        main(["inspect", str(path), "--no-horizon"])
        assert f"{trained.result['parameters']:,} parameters" in " ".join(capsys.readouterr().out.split())
    main(["report", str(folder), "--out", str(tmp_path / "report")])
    assert "finished" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_checkpoints_are_inspected(name, capsys, exact):
    (checkpoint,) = (DATA / "runs" / name / "checkpoints").iterdir()
    main(["inspect", str(checkpoint), "--no-horizon"])
    parameters = json.loads((DATA / "expected" / "runs" / name / "outcome.json").read_text())["result"]["parameters"]
    assert f"{parameters:,} parameters" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["stack", "stack-rotary"])
def test_an_interrupted_stack_continues(data, name, exact):
    configs = read_configs(data / name)
    with pytest.raises(CheckpointError, match=f"stack of {len(configs)} runs"):  # none of its runs begins anew alone
        run(configs["delayed"], data / name / "delayed", device="cpu")
    first_step = []
    done = run_stacked(configs, data / name, CPU, observe=lambda run, seen: first_step.append(seen.step))
    assert first_step[0] == {"stack": 24, "stack-rotary": 12}[name]
    assert list(done.failed) == [run for run in configs if run == "failed"]
    assert list(done.trained) == [run for run in configs if run != "failed"]
    for run_name in done.trained:
        check(data / name / run_name, DATA / "expected" / name / run_name, exact)


def test_a_half_done_study_continues(data, exact, capsys):
    folder, file = data / "study", str(data / "study.py")
    finished = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
    chosen = (folder / "choices.json").read_bytes()
    main(["study", file, "--scale", "tiny", "--out", str(folder), "--workers", "1", "--device", "cpu"])
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # no finished run is repeated
    assert (folder / "choices.json").read_bytes() == chosen
    for name in STUDY_RUNS:
        check(folder / name, DATA / "expected" / "study" / name, exact)
    for file in ("results.parquet", "tuning.parquet"):
        got, wanted = read_results([folder / file]), read_results([DATA / "expected" / "study" / file])
        assert [record.key for record in got] == [record.key for record in wanted]
        if exact:
            assert [record.evaluation for record in got] == [record.evaluation for record in wanted]
            assert [record.curve for record in got] == [record.curve for record in wanted]
    assert "dat" in (folder / "report" / "index.html").read_text()


def test_a_study_that_was_stopped_in_a_stack_of_its_tuning_runs_continues(data, exact):
    def runner(configs: dict[str, RunConfig], folder: Path) -> dict[str, str]:
        return run_in_stacks(configs, folder, CPU, observe, fit=lambda config, device: 8)

    first_step = []

    def observe(name: str, seen: Any) -> None:
        first_step.append(seen.step)

    study = find_study(str(data / "study.py"))
    done = execute(study.name, plan_of(study, "tiny"), data / "study-stacked", runner)
    assert done.failures == {}
    assert first_step[0] == 12
    for name in STUDY_RUNS:
        check(data / "study-stacked" / name, DATA / "expected" / "study-stacked" / name, exact)


@pytest.mark.parametrize("half_done", [True, False])
def test_results_files_are_read_and_reported(tmp_path, half_done, exact):
    folder = DATA / "study" if half_done else DATA / "expected" / "study"
    records = read_results([folder / "results.parquet"])
    assert [(record.arm, record.seed) for record in records] == [
        (arm, seed) for arm in ("joint", "dat") for seed in (0, 1)
    ]
    for record, name in zip(records, STUDY_RUNS, strict=True):
        if record.evaluation is None:
            assert half_done
            assert record.failure is not None
            continue
        stored = json.loads((DATA / "expected" / "study" / name / "outcome.json").read_text())
        assert record.evaluation.to_json() == stored["evaluation"]
        assert record.switch_step == stored["result"]["switch_step"]
    assert [record.evaluation is None for record in records] == [False, *[half_done] * 3]
    files = [str(folder / file) for file in ("results.parquet", "tuning.parquet")]
    main(["report", *files, "--out", str(tmp_path / "report")])
    tables = {file.name for file in (tmp_path / "report" / "tables").glob("*.md")}
    assert {f"small-composite-5-{table}.md" for table in ("accuracy", "reach", "choices")} <= tables


def test_a_half_done_study_is_reported_as_it_is(tmp_path, exact):
    main(["report", str(DATA / "study"), "--out", str(tmp_path / "report")])
    assert "joint" in (tmp_path / "report" / "index.html").read_text()
