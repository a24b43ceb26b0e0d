"""The tables of probes as parquet files: one file for each probe, with the rows of all runs.

A row has the names of its run (study, task, arm, seed, training length), the hash of its configuration and the settings
of the probe, followed by the columns of the probe's table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latebloom.errors import ResultsError
from latebloom.probes.table import Column, Table
from latebloom.reading import read_plain

if TYPE_CHECKING:
    import polars

FORMAT = "1"
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
    frame.write_parquet(content, compression="zstd", metadata={MARK: FORMAT, NAME: name})
    try:
        make_folder(path.parent)
        write_file(path, content.getvalue())
    except OSError as error:
        raise ResultsError(f"probe: {path} cannot be written ({error.strerror})") from None


def read_probe(path: Path, columns: Mapping[str, Sequence[Column]]) -> tuple[str, list[Probed]]:
    """Return the probe of a file and the tables in it, given the columns of every known probe."""
    import polars as pl

    try:
        content = read_plain(path, follow=True)
    except OSError as error:
        raise ResultsError(f"probe: {path} cannot be read ({error.strerror})") from None
    try:
        about = pl.read_parquet_metadata(BytesIO(content))
        frame = pl.read_parquet(BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # polars panics on some damaged files
        raise ResultsError(f"probe: {path} is not a parquet file, or a damaged one") from None
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
