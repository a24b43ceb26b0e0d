"""The tables of probes as parquet files: one file for each probe, with the rows of all runs.

A row has the names of its run (study, task, arm, seed, training length), the hash of its configuration and the settings
of the probe, followed by the columns of the probe's table.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latebloom.errors import LatebloomError, ResultsError, refuse_unwritable
from latebloom.probes.table import Column, Table
from latebloom.reading import read_plain
from latebloom.results.file import DIGEST, RESULTS_FILE, UNSEALED, read_metadata, refuse_unreadable, seal
from latebloom.results.record import RunRecord

if TYPE_CHECKING:
    import polars

FORMAT = "1"
FOLDER = "probes"
"""Where the results of a study's or a run's probes are, in its folder."""
MARK, NAME = "latebloom_probe_format", "latebloom_probe"
"""Metadata: the format of the file, and the name of the probe."""
TEXTS = ("study", "task", "arm", "training", "config_hash", "settings")
KEY = ("study", "task", "arm", "training", "seed", "training_length", "config_hash", "settings")


@dataclass(frozen=True)
class Probed:
    """The table of one run."""

    study: str
    task: str
    arm: str
    training: str
    """joint or delayed."""
    seed: int
    training_length: int
    config_hash: str
    settings: str
    """The settings of the probe as JSON."""
    table: Table


def schema(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the columns of a file and their types."""
    import polars as pl

    kinds: dict[str, Any] = {"text": pl.String, "whole": pl.Int64, "number": pl.Float64}
    own = {name: pl.String if name in TEXTS else pl.Int64 for name in KEY}
    return own | {column.name: kinds[column.kind] for column in columns}


def write_probe(path: Path, name: str, columns: Sequence[Column], runs: Sequence[Probed]) -> None:
    """Write the tables of several runs atomically."""
    import polars as pl

    from latebloom.engine.files import make_folder, write_file

    rows = [{key: getattr(run, key) for key in KEY} | row for run in runs for row in run.table.records()]
    content = BytesIO()
    frame = pl.DataFrame(rows, schema=schema(columns))
    frame.write_parquet(content, compression="zstd", metadata={MARK: FORMAT, NAME: name, DIGEST: UNSEALED})
    with refuse_unwritable("probe", path, ResultsError):
        make_folder(path.parent)
        write_file(path, seal(content.getvalue()))


def split_paths(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the paths of results and runs, and the files of probes: those that are named, by themselves or by their
    folder, and those in the folder `probes` of a study or run."""
    rest: list[Path] = []
    named: list[Path] = []
    for path in paths:
        is_folder = path.is_dir() and not any((path / name).exists() for name in (RESULTS_FILE, "config.json"))
        own = sorted(path.glob("*.parquet")) if is_folder else [path] if path.is_file() else []
        found = [file for file in own if is_probe_file(file)]
        rest += [] if found else [path]
        named += found or probe_files(path)
    return rest, list({file.resolve(): file for file in named}.values())


def probe_files(folder: Path) -> list[Path]:
    """Return the files of the probes of a study or run, damaged ones too."""
    return sorted((folder / FOLDER).glob("*.parquet"))


def read_probes(files: Sequence[Path]) -> dict[str, list[Probed]]:
    """Return the tables in files of probes, by probe; a probe that is not known here is left out."""
    if not files:
        return {}
    from latebloom.probes import load_probes
    from latebloom.probes.probe import Probe

    load_probes()
    columns = {name: probe.columns for name, probe in Probe.choices().items()}
    tables: dict[str, list[Probed]] = {}
    for file in files:
        if _read_sound(file)[1].get(NAME) not in columns:
            continue
        name, found = read_probe(file, columns)
        known = {one.config_hash for one in tables.get(name, ())}
        if twice := [one for one in found if one.config_hash in known]:
            raise ResultsError(
                f"probe: {twice[0].arm}, seed {twice[0].seed} is in {file} and in another file of {name}"
            )
        tables.setdefault(name, []).extend(found)
    return tables


def state_answer(run: RunRecord) -> str | None:
    """Return the answer of a run's task that needs state tracking; None if there is none, or the task is not known."""
    from latebloom.config import config_from

    try:
        return config_from(json.loads(run.config)).task.state_answer
    except (LatebloomError, ValueError):
        return None


def is_probe_file(path: Path) -> bool:
    import polars as pl

    try:
        content = read_plain(path, follow=True)
        metadata = read_metadata(content)
        return MARK.encode() in content if metadata is None else MARK in metadata
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False


def _read_sound(path: Path) -> tuple[bytes, dict[str, str]]:
    """Return the content and the metadata of a parquet file; raise if it was changed."""
    with refuse_unreadable("probe", path):
        content = read_plain(path, follow=True)
        about = read_metadata(content)
    if about is None:
        raise ResultsError(
            f"probe: {path} is damaged: it was changed after it was written; remove it and probe the runs again"
        )
    return content, about


def read_probe(path: Path, columns: Mapping[str, Sequence[Column]]) -> tuple[str, list[Probed]]:
    """Return the probe of a file and the tables in it, given the columns of every known probe."""
    import polars as pl

    content, about = _read_sound(path)
    with refuse_unreadable("probe", path):
        frame = pl.read_parquet(BytesIO(content))
    name = about.get(NAME, "")
    if about.get(MARK) != FORMAT or name not in columns:
        raise ResultsError(f"probe: {path} holds no results of a probe that is known: {', '.join(columns)}")
    wanted = schema(columns[name])
    if dict(frame.schema) != wanted:
        raise ResultsError(f"probe: {path} has other columns than {name} has now; remove it and probe the runs again")
    return name, list(_runs(frame, columns[name]))


def _runs(frame: "polars.DataFrame", columns: Sequence[Column]) -> list[Probed]:
    found = []
    for part in frame.partition_by(KEY, maintain_order=True):
        own = part.row(0, named=True)
        rows = part.select([column.name for column in columns]).rows()
        found.append(Probed(**{name: own[name] for name in KEY}, table=Table(tuple(columns), tuple(rows))))
    return found
