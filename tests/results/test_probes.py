"""The files of probes: what was changed is refused, and nothing is written through links."""

import os
from pathlib import Path

import pytest

from latebloom import run
from latebloom.cli import main
from latebloom.errors import ResultsError
from latebloom.probes.sharpness import Sharpness
from latebloom.probes.table import Table
from latebloom.results.probes import Probed, read_probe, read_probes, split_paths, write_probe

COLUMNS = {"sharpness": Sharpness.columns}


@pytest.fixture
def file(tmp_path) -> Path:
    same = {"layer": 0, "head": 0, "entropy": 1.0, "largest": 0.5, "sequences": 8}
    table = Table.of(Sharpness.columns, [{"length": length, "right": length / 99} | same for length in range(1, 30)])
    runs = [Probed("s", "composite", "dat", "delayed", seed, 25, f"hash{seed}", "{}", table) for seed in range(3)]
    file = tmp_path / "study" / "probes" / "sharpness.parquet"
    write_probe(file, "sharpness", Sharpness.columns, runs)
    return file


def test_no_flipped_bit_of_a_probe_is_read(file):
    content, right = file.read_bytes(), read_probe(file, COLUMNS)
    for place in range(0, len(content), max(1, len(content) // 300)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        with pytest.raises(ResultsError):
            read_probe(file, COLUMNS)
    file.write_bytes(content)
    assert read_probe(file, COLUMNS) == right


@pytest.mark.parametrize("damage", ["changed", "cut", "a pipe"])
def test_a_damaged_file_beside_a_study_is_refused_and_not_left_out(damage, file, capsys):
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.unlink()
    if damage == "a pipe":
        os.mkfifo(file)
    else:
        file.write_bytes(content if damage == "changed" else content[:100])
    _, files = split_paths([file.parent.parent])
    with pytest.raises(ResultsError, match=r"probe: .*sharpness.parquet"):
        read_probes(files)
    with pytest.raises(SystemExit) as end:
        main(["verify", str(file)])
    assert end.value.code == 1
    assert "1 checked, 0 sound, 1 damaged." in capsys.readouterr().out


def test_verify_checks_the_probes_in_the_folder_of_a_run(tiny, file, tmp_path, capsys):
    run(tiny, tmp_path / "study", device="cpu")
    main(["verify", str(tmp_path / "study")])
    assert capsys.readouterr().out == "2 checked, 2 sound, 0 damaged.\n"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(SystemExit):
        main(["verify", str(tmp_path / "study")])
    assert "2 checked, 1 sound, 1 damaged." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["probes", "probes/index.html", "probes/figures"])
@pytest.mark.parametrize("out", [(), ("--out", "run/probes")], ids=["by default", "named"])
def test_nothing_is_written_through_a_link(name, out, tiny, tmp_path, monkeypatch, capsys):
    if name == "probes" and out:
        return  # a link that is named is followed
    monkeypatch.chdir(tmp_path)
    run(tiny, "seeds/seed-0", device="cpu")
    place = tmp_path / "seeds" / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path / "victim")
    (tmp_path / "victim").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "seeds")
    with pytest.raises(SystemExit):
        main(["probe", "seeds", "--what", "sharpness", *out])
    assert f"{place.name} is a link; probes are not written through links" in capsys.readouterr().err
    assert not list((tmp_path / "victim").iterdir())
