"""One configuration with many seeds."""

import json
import shutil
from dataclasses import replace

import pytest

from latebloom import run
from latebloom.cli import main
from latebloom.errors import CheckpointError
from latebloom.study import train_seeds


@pytest.fixture
def config_file(tiny, tmp_path):
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(tiny.to_json()))
    return file


def test_every_seed_is_the_run_that_it_gives_alone(tiny, tmp_path, config_file, capsys):
    out = tmp_path / "many"
    main(["train", "--config", str(config_file), "--seed", "3", "--seeds", "2", "--out", str(out), "--device", "cpu"])
    said = capsys.readouterr()
    assert "Means over 2 seeds." in said.out
    assert "Reach and cliff" in said.out
    summary = json.loads((out / "summary.json").read_text())
    assert [one["name"] for one in summary["runs"]] == ["seed-3", "seed-4"]
    for one in summary["runs"]:
        alone = run(replace(tiny, seed=one["seed"]), device="cpu")
        assert one["evaluation"] == alone.evaluation.to_json()
        assert (out / one["name"] / "result.json").exists()


def test_interrupted_seeds_go_on_with_the_folder_alone(tmp_path, config_file, capsys):
    """Killed: one seed is unfinished, and the other has not begun."""
    out = tmp_path / "many"
    main(["train", "--config", str(config_file), "--seed", "3", "--seeds", "2", "--out", str(out), "--device", "cpu"])
    whole = json.loads((out / "summary.json").read_text())
    (out / "seed-3" / "result.json").unlink()
    shutil.rmtree(out / "seed-4")
    for words, told in (["evaluate"], "holds no run"), (["inspect"], "holds no model"):
        with pytest.raises(SystemExit):
            main([*words, str(out)])
        assert f"{told}: there is no config.json in it; the runs below it are {out}/seed-3\n" in capsys.readouterr().err
    main(["train", "--out", str(out), "--device", "cpu"])
    told = f"Continues in {out}: 0 of 2 runs are finished, 1 interrupted or failed, 1 not begun.\n"
    assert capsys.readouterr().err.startswith(told)
    again = json.loads((out / "summary.json").read_text())
    for summary in (whole, again):
        for one in summary["runs"]:
            del one["seconds"]
    assert again == whole


def test_a_folder_of_other_runs_is_refused_before_training(tiny, tmp_path):
    run(replace(tiny, seed=1, delay=None), tmp_path / "seed-1", device="cpu")
    with pytest.raises(CheckpointError, match=r"seed-1 holds a run with other settings \(delay: "):
        train_seeds(tiny, 2, tmp_path, device="cpu")
    assert not (tmp_path / "seed-0").exists()


def test_no_seeds_are_a_mistake(config_file, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", str(config_file), "--seeds", "0"])
    assert stop.value.code == 2
    assert "seeds: 0 is not possible" in capsys.readouterr().err
