"""`latebloom verify`: it names every damaged file, and repairs what a checkpoint holds."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import study

from latebloom import run
from latebloom.cli import main
from latebloom.engine.loop import run_until
from latebloom.engine.manifest import write_manifest
from latebloom.engine.pause import Stop
from latebloom.results.collect import StudyRun, collect
from latebloom.results.file import read_results, write_results


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_run) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "run"
    run(tiny_run, folder, device="cpu")
    return folder


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def verify(capsys, *words: object) -> tuple[int, str]:
    try:
        main(["verify", *map(str, words)])
        status = 0
    except SystemExit as stop:
        status = int(str(stop.code))
    return status, capsys.readouterr().out


def test_a_sound_run_is_sound(folder, capsys):
    assert verify(capsys, folder) == (0, "1 checked, 1 sound, 0 damaged.\n")


FILES = ("config.json", "environment.json", "metrics.jsonl", "model/config.json", "model/model.safetensors")
FILES += ("evaluation.json", "result.json", "manifest.json")


@pytest.mark.parametrize("file", [*FILES, "checkpoints/step-00000024/model.safetensors"])
def test_one_changed_bit_is_found_and_named(file, folder, capsys):
    content = bytearray((folder / file).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / file).write_bytes(content)
    status, told = verify(capsys, folder)
    assert status == 1
    assert Path(file).name in told or file == "manifest.json"  # there, the file of the changed digest is named
    assert "--repair" in told
    assert told.endswith("1 checked, 0 sound, 1 damaged.\n")


@pytest.mark.parametrize("names", [(), ("config.json", "result.json")])
def test_a_manifest_that_does_not_name_every_file_is_damaged(names, folder, capsys):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({name: manifest[name] for name in names}))
    status, told = verify(capsys, folder)
    assert status == 1
    assert "manifest.json is missing or was changed" in told


@pytest.mark.parametrize("file", ["model/model.safetensors", "evaluation.json", "result.json", "manifest.json"])
def test_what_the_checkpoint_holds_is_repaired(file, folder, finished, capsys):
    (folder / file).write_bytes(b"x")
    with pytest.warns(UserWarning, match="was damaged and is restored"):
        status, told = verify(capsys, folder, "--repair")
    assert status == 0, told
    assert "was repaired from step-00000024" in told
    for name in ("model/model.safetensors", "evaluation.json"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def test_a_damaged_checkpoint_is_removed_where_another_is_whole(folder, capsys):
    (folder / "checkpoints" / "step-00000024" / "state.json").write_text("{}")
    assert verify(capsys, folder)[0] == 1
    assert verify(capsys, folder, "--repair")[0] == 0
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000020"]


def test_damaged_checkpoints_are_removed_if_nothing_needs_them_and_else_the_way_out_is_told(folder, capsys):
    for file in folder.glob("checkpoints/*/state.json"):
        file.write_text("{}")
    whole = Path(shutil.copytree(folder, folder.with_name("sound")))
    status, told = verify(capsys, whole, "--repair")
    assert status == 0
    assert "sound: removed step-00000020, step-00000024, which" in " ".join(told.split())
    (folder / "model" / "model.safetensors").write_bytes(b"x")
    status, told = verify(capsys, folder, "--repair")
    assert status == 1
    assert "run cannot be repaired; remove it and train the run again" in " ".join(told.split())


@pytest.mark.parametrize("words", [("evaluate",), ("inspect",), ("report",), ("train", "--out"), ("verify",)])
def test_a_result_of_another_run_is_refused_although_the_digests_are_right(words, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    result = json.loads((folder / "result.json").read_text()) | {"config_hash": "0" * 12}
    (folder / "result.json").write_text(json.dumps(result))
    write_manifest(folder, (folder / "result.json").read_bytes())
    with pytest.raises(SystemExit):
        main([*words, "run"])
    said = capsys.readouterr()
    assert "holds the result of another run than its config.json describes" in said.out + said.err


def test_what_nothing_holds_stays_damaged(folder, capsys):
    (folder / "metrics.jsonl").write_text("{}")
    status, told = verify(capsys, folder, "--repair")
    assert status == 1
    assert "metrics.jsonl is missing or was changed" in told


def test_the_tests_at_pauses_are_checked(tiny_run, tmp_path, capsys):
    run_until(tiny_run, tmp_path / "run", Stop(7), device="cpu")
    assert verify(capsys, tmp_path / "run")[0] == 0
    file = tmp_path / "run" / "pause-00000007.json"
    file.write_text(file.read_text().replace('"stacked": 1', '"stacked": 2'))
    status, told = verify(capsys, tmp_path / "run")
    assert status == 1
    assert "pause-00000007.json is damaged" in told
    (tmp_path / "run" / "pause-of-mine.json").write_text("{}")  # not from a run
    file.unlink()
    assert verify(capsys, tmp_path / "run")[0] == 0


def test_a_results_file_names_the_runs_that_it_was_made_from(folder, tiny_run, tmp_path, capsys):
    record = collect(StudyRun("s", "t", "dat", tiny_run, folder))
    write_results(tmp_path / "results.parquet", [record])
    assert read_results([tmp_path / "results.parquet"])[0].manifest == record.manifest
    assert verify(capsys, tmp_path) == (0, "2 checked, 2 sound, 0 damaged.\n")
    write_results(tmp_path / "results.parquet", [replace(record, manifest="0" * 63 + "1")])
    status, told = verify(capsys, tmp_path)
    assert status == 1
    assert "was made from other runs than are in the folder" in told


def test_no_flipped_bit_of_a_results_file_is_read(tmp_path):
    """Of a digest over the whole file, each byte counts; before, 16 of 100 flips changed a number without a word."""
    from latebloom.errors import ResultsError

    file = tmp_path / "a.parquet"
    write_results(file, study(seeds=2))
    content = file.read_bytes()
    assert read_results([file])
    in_name = content.index(b"latebloom_digest") + 12  # a file without a digest is an older one
    for place in (in_name, *range(0, len(content), max(1, len(content) // 300))):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        with pytest.raises(ResultsError):
            read_results([file])


def test_an_older_run_and_an_older_file_are_read_with_a_note(folder, capsys):
    (folder / "manifest.json").unlink()
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k != "manifest"}))
    status, told = verify(capsys, folder)
    assert status == 0
    assert "written by a version without digests" in told
    older = Path(__file__).parent.parent / "results" / "paper.parquet"
    status, told = verify(capsys, older)
    assert status == 0
    assert "written by a version without digests" in told


def test_a_path_that_does_not_exist_is_a_mistake_and_not_damage(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["verify", str(tmp_path / "nothing-here")])
    assert end.value.code == 2
    assert "nothing-here does not exist; give the folder of a run" in capsys.readouterr().err


@pytest.fixture
def several(finished, tmp_path, tiny_run) -> Path:
    """A folder of two runs and the results that were made from them."""
    folders = [tmp_path / "several" / f"seed-{seed}" for seed in (0, 1)]
    shutil.copytree(finished, folders[0])
    run(replace(tiny_run, seed=1), folders[1], device="cpu")
    runs = [StudyRun("s", "t", "dat", replace(tiny_run, seed=seed), folder) for seed, folder in enumerate(folders)]
    write_results(tmp_path / "several" / "results.parquet", [collect(one) for one in runs])
    return tmp_path / "several"


@pytest.mark.parametrize("missing", ["config.json", ".lock"])
def test_a_run_that_lost_a_file_is_found_among_others_and_named(missing, several, capsys):
    (several / "seed-1" / missing).unlink()
    (several / "seed-1" / "evaluation.json").write_text("{}")
    status, told = verify(capsys, several)
    assert status == 1
    assert "seed-1: evaluation.json is missing or was changed" in " ".join(told.split())
    assert told.endswith("3 checked, 2 sound, 1 damaged.\n")
    status, told = verify(capsys, several / "seed-1")
    assert status == 1
    assert "1 checked, 0 sound, 1 damaged" in told


def test_a_run_that_cannot_be_repaired_does_not_keep_others_from_it(several, finished, capsys):
    (several / "seed-0" / "config.json").write_text("{")
    (several / "seed-1" / "model" / "model.safetensors").write_bytes(b"x")
    with pytest.warns(UserWarning, match="was damaged and is restored"):
        status, told = verify(capsys, several, "--repair")
    assert status == 1
    assert "seed-1 was repaired from step-00000024" in " ".join(told.split())


def unreadable(monkeypatch, file: Path) -> None:
    """Let the operating system fail to open a file."""
    opened = os.open

    def fail(path, *rest, **named):
        if Path(path) == file:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, *rest, **named)

    monkeypatch.setattr(os, "open", fail)


@pytest.mark.parametrize("file", ["metrics.jsonl", "manifest.json", "model/model.safetensors"])
@pytest.mark.parametrize("words", [("evaluate",), ("train", "--out"), ("verify",), ("verify", "--repair")])
def test_a_file_that_cannot_be_read_now_is_not_called_changed_and_stays(words, file, folder, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with monkeypatch.context() as patched:
        unreadable(patched, folder / file)
        with pytest.raises(SystemExit):
            main([*words, str(folder)])
    told = " ".join("".join(capsys.readouterr()).split())
    assert f"{file} cannot be read (Input/output error)" in told
    assert "remove" not in told.replace("removed", "")
    assert "or was changed" not in told
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_that_cannot_be_read_now_is_not_removed(folder, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        unreadable(patched, folder / "checkpoints" / "step-00000024" / "optimizer.safetensors")
        status, told = verify(capsys, folder, "--repair")
    assert status == 1
    assert "it may be whole, and nothing was changed" in " ".join(told.split())
    assert verify(capsys, folder)[0] == 0
    assert len(list((folder / "checkpoints").iterdir())) == 2


def test_checkpoints_stay_if_a_damaged_environment_hides_which_they_are(folder, capsys):
    (folder / "manifest.json").unlink()  # a run of the first version, without digests
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({key: result[key] for key in result if key != "manifest"}))
    (folder / "environment.json").write_text("[")
    assert verify(capsys, folder, "--repair")[0] == 1
    assert len(list((folder / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("words", [("evaluate",), ("probe",), ("train", "--out")])
def test_a_sound_run_of_a_language_model_is_not_called_damaged(words, tmp_path, capsys):
    for name in ("settings.json", "environment.json", "result.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main([*words, str(tmp_path)])
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert "damaged" not in told.out + told.err
    assert told.err.rstrip().endswith(f"latebloom lm evaluate {tmp_path}")


def test_a_language_model_beside_runs_is_not_called_damaged(folder, capsys):
    shutil.copytree(folder, folder.parent / "lm")
    (folder.parent / "lm" / "config.json").rename(folder.parent / "lm" / "settings.json")
    assert verify(capsys, folder.parent) == (0, "1 checked, 1 sound, 0 damaged.\n")
    main(["inspect", str(folder.parent / "lm"), "--no-horizon"])
    assert "those in" in capsys.readouterr().out


def test_results_of_studies_below_a_folder_are_checked_against_their_own_runs(several, capsys):
    other = Path(shutil.copytree(several, several.parent / "other"))
    shutil.rmtree(other / "seed-1")
    results = other / "results.parquet"
    write_results(results, [record for record in read_results([results]) if record.seed == 0])
    assert verify(capsys, several.parent) == (0, "5 checked, 5 sound, 0 damaged.\n")
    content = bytearray(results.read_bytes())
    content[len(content) // 2] ^= 1
    results.write_bytes(content)
    status, told = verify(capsys, several.parent)
    assert status == 1
    assert "other/results.parquet" in told
    assert told.endswith("5 checked, 4 sound, 1 damaged.\n")
    shutil.copy(several / "results.parquet", results)  # it names a run that only the other study has
    status, told = verify(capsys, several.parent)
    assert status == 1
    assert "was made from other runs than are in the folder" in told


@pytest.mark.parametrize(
    "name", ["config.json", "environment.json", "manifest.json", "checkpoints/step-00000024/state.json"]
)
def test_a_run_that_cannot_be_read_now_is_counted_apart_from_damaged_ones(name, several, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        unreadable(patched, several / "seed-1" / name)
        status, told = verify(capsys, several)
    assert status == 1
    assert f"{name} cannot be read (Input/output error); it may be whole" in " ".join(told.split())
    assert "--repair" not in told
    # Without its manifest the results cannot be compared with the run either.
    count = "1 sound, 0 damaged, 2" if name == "manifest.json" else "2 sound, 0 damaged, 1"
    assert told.endswith(f"3 checked, {count} could not be read.\n")
    assert verify(capsys, several) == (0, "3 checked, 3 sound, 0 damaged.\n")
