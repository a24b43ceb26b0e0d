"""The results file: parquet, with a row for each run and length.

The columns of a run (configuration, command, ...) are repeated on each of its rows; compression makes that nearly free.
The training curve is on the first row only, because a report of ten thousand runs would take gigabytes otherwise. A run
that failed has one row without a length. An answer NAME of a task has the columns accuracy_NAME and chance_NAME, and
the column queries_NAME if a sequence has several scored queries of it. The metadata hold a digest of the whole file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latebloom.engine.files import digest, make_folder, write_file
from latebloom.errors import ResultsError, catch_write_errors, refuse_unwritable, unreadable
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import Evaluation
from latebloom.reading import is_unreadable, read_plain
from latebloom.results.record import CurvePoint, RunRecord

if TYPE_CHECKING:
    import polars

RESULTS_FILE, TUNING_FILE = "results.parquet", "tuning.parquet"
"""In the folder of a study: its runs, and those on tuning seeds."""
FORMAT = "1"
MARK = "latebloom_results"
"""The metadata key that holds the format."""
DIGEST = "latebloom_digest"
"""The metadata key that holds the digest of the file, in which the digest itself counts as zeros. Older files have
none."""
UNSEALED = "0" * 64
WRITTEN_DIGEST = re.compile(DIGEST.encode() + rb"..([0-9a-f]{64})", re.DOTALL)
"""The digest as it stands in the bytes: between the key and its value parquet has a type and a length."""
KEY = ("study", "task", "training_length", "arm", "seed")
ALWAYS = ("sum", "recall")
"""Answers that have columns even if no task asks for them."""
RUN_NUMBERS = ("switch_step", "steps", "seconds", "stacked")
RUN_TEXTS = ("failure", "config", "config_hash", "versions", "machine", "commit", "command")
OWN = (*KEY, *RUN_NUMBERS, *RUN_TEXTS)
"""The columns that are fields of a record."""
AGAINST, MANIFEST = "against", "manifest"
"""Columns that older results files do not have."""
LOSS = "loss"
"""A column of files with language models: the loss at this length of context, in nats."""
STATED = "stated"
"""A column of files whose study states hypotheses, negative controls or selections."""
AT_ONCE = 200
"""The number of runs whose rows are made at once."""
NEVER_NULL = (*KEY, "config", "config_hash", "command")


def schema(answers: Iterable[str] = ALWAYS, several: Iterable[str] = ()) -> dict[str, Any]:
    """Return the columns and their types, for these answers and those with several queries per sequence."""
    import polars as pl

    point = pl.Struct({"measure": pl.String, "length": pl.Int32, "step": pl.Int32, "value": pl.Float32})
    return {
        **dict.fromkeys(("study", "task", "arm"), pl.String),
        "seed": pl.Int64,
        "training_length": pl.Int32,
        "length": pl.Int32,
        "accuracy": pl.Float64,
        **{f"accuracy_{name}": pl.Float64 for name in answers},
        "sequences": pl.Int32,
        "correct": pl.Int32,
        "chance": pl.Float64,
        **{f"chance_{name}": pl.Float64 for name in answers},
        **{f"queries_{name}": pl.Int32 for name in several},
        **{name: pl.Float64 if name == "seconds" else pl.Int32 for name in RUN_NUMBERS},
        **dict.fromkeys(RUN_TEXTS, pl.String),
        "curve": pl.List(point),
        AGAINST: pl.List(pl.String),
        MANIFEST: pl.String,
    }


def write_results(path: Path, records: Sequence[RunRecord]) -> None:
    """Write a results file atomically: a reader sees the old one or the new one."""
    import polars as pl

    evaluations = [record.evaluation for record in records if record.evaluation]
    answers = dict.fromkeys((*ALWAYS, *(name for one in evaluations for name in one.chance)))
    several = dict.fromkeys(name for one in evaluations for count in one.counts for name in count.queries)
    content = BytesIO()
    columns = schema(answers, several) | ({STATED: pl.String} if any(record.stated for record in records) else {})
    columns |= {LOSS: pl.Float64} if any(one.losses for one in evaluations) else {}
    # In parts, because the points of all curves as Python objects take gigabytes.
    parts = (records[i : i + AT_ONCE] for i in range(0, len(records), AT_ONCE))
    frames = [pl.DataFrame([row for one in part for row in _rows(one)], schema=columns) for part in parts]
    frame = pl.concat(frames, rechunk=True) if frames else pl.DataFrame(schema=columns)
    frame.write_parquet(content, compression="zstd", metadata={MARK: FORMAT, DIGEST: UNSEALED})
    sealed = seal(content.getvalue())
    with catch_write_errors(path), refuse_unwritable("results", path, ResultsError):
        make_folder(path.parent)
        write_file(path, sealed)


def seal(content: bytes) -> bytes:
    """Return the content of a parquet file with its digest in the place of the zeros.

    Where a text of the runs holds as many zeros, the file stays without a digest.
    """
    zeros = UNSEALED.encode()
    return content.replace(zeros, digest(content).encode()) if content.count(zeros) == 1 else content


def read_metadata(content: bytes) -> dict[str, str] | None:
    """Return the metadata of a parquet file, or None if it was changed after it was written.

    The digest is searched in the bytes before polars reads them, because polars prints a panic for some damaged files.
    """
    import polars as pl

    found = WRITTEN_DIGEST.match(content, max(content.rfind(DIGEST.encode()), 0))
    if found is not None and not _is_sound(content, found[1].decode()):
        return None
    metadata = pl.read_parquet_metadata(BytesIO(content))
    return metadata if _is_sound(content, _digest_in(metadata)) else None


def has_digest(path: Path) -> bool:
    """Return whether a parquet file holds a digest of itself."""
    metadata = read_metadata(read_plain(path, follow=True))
    return metadata is None or _digest_in(metadata) != UNSEALED


def _is_sound(content: bytes, written: str) -> bool:
    return written == UNSEALED or digest(content.replace(written.encode(), UNSEALED.encode())) == written


def _digest_in(metadata: Mapping[str, str]) -> str:
    """Return the digest among the metadata, by its length: a changed letter of its name must not hide it."""
    return next((value for value in metadata.values() if len(value) == len(UNSEALED)), UNSEALED)


def read_results(paths: Sequence[Path]) -> list[RunRecord]:
    """Read the runs of one or several files, in their order."""
    records: list[RunRecord] = []
    origin: dict[tuple[object, ...], Path] = {}
    for path in paths:
        for record in _records(read_frame(path), path):
            if record.key in origin:
                raise ResultsError(f"results: the run {record.name} is in both {origin[record.key]} and {path}")
            origin[record.key] = path
            records.append(record)
    return records


@contextmanager
def refuse_unreadable(field: str, path: Path) -> Iterator[None]:
    """Raise ResultsError if a file cannot be read, or is no parquet file."""
    from polars.exceptions import PanicException, PolarsError

    try:
        yield
    except OSError as error:
        if is_unreadable(error):
            raise unreadable(path, error) from None
        raise ResultsError(f"{field}: {path} cannot be read ({error.strerror})") from None
    except (PolarsError, PanicException):  # polars panics on some damaged files
        raise ResultsError(f"{field}: {path} is not a parquet file, or a damaged one") from None


def read_frame(path: Path) -> "polars.DataFrame":
    """Read one file as a table, and check its format."""
    import polars as pl

    with refuse_unreadable("results", path):
        content = read_plain(path, follow=True)
        metadata = read_metadata(content)
        if metadata is None:
            raise ResultsError(
                f"results: {path} is damaged: it was changed after it was written; give the command of the study again "
                "to write it anew"
            )
        frame = pl.read_parquet(BytesIO(content))
    mark = metadata.get(MARK)
    if mark is None:
        raise ResultsError(f"results: {path} is a parquet file of something else; it has no mark {MARK}")
    if mark != FORMAT:
        raise ResultsError(f"results: {path} has format {mark}; this version reads {FORMAT}")
    wanted = schema()
    for name, empty in ((AGAINST, []), (MANIFEST, None)):
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(empty, dtype=wanted[name]).alias(name))
    types = frame.schema
    if lacking := [name for name in wanted if name not in types]:
        raise ResultsError(f"results: {path} lacks the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
    wrong = [f"{name} ({types[name]}, not {kind})" for name, kind in wanted.items() if types[name] != kind]
    wrong += [f"{name} (empty in places)" for name in NEVER_NULL if frame[name].null_count()]
    if wrong:
        raise ResultsError(f"results: {path} has columns of the wrong form: {'; '.join(wrong)}")
    if frame.is_empty():
        raise ResultsError(f"results: {path} holds no run")
    return frame


def _rows(record: RunRecord) -> Iterable[dict[str, Any]]:
    own = {
        **{name: getattr(record, name) for name in OWN},
        "curve": [point._asdict() for point in record.curve],
        AGAINST: list(record.against),
        **({STATED: record.stated} if record.stated else {}),
        MANIFEST: record.manifest,
    }
    evaluation = record.evaluation
    if evaluation is None:
        yield own
        return
    for number, count in enumerate(evaluation.counts):
        yield (own if number == 0 else own | {"curve": None}) | {
            "length": count.length,
            "accuracy": count.accuracy,
            "sequences": count.sequences,
            "correct": count.correct,
            "chance": evaluation.chance_all,
            **({LOSS: evaluation.losses.get(count.length)} if evaluation.losses else {}),
            **{f"accuracy_{name}": count.accuracy_of(name) for name in evaluation.chance},
            **{f"chance_{name}": level for name, level in evaluation.chance.items()},
            **{f"queries_{name}": queries for name, queries in count.queries.items()},
        }


def _records(frame: "polars.DataFrame", path: Path) -> Iterable[RunRecord]:
    """Yield the runs of a table; the rows of a run need not be adjacent."""
    curves, runs = _curves(frame), dict[tuple[object, ...], list[dict[str, Any]]]()
    for row in frame.drop("curve").sort("length", nulls_last=False, maintain_order=True).iter_rows(named=True):
        runs.setdefault(tuple(row[name] for name in KEY), []).append(row)
    for key, curve in curves.items():
        rows = runs[key]
        first = rows[0]
        names = ", ".join(str(name) for name in key)
        is_failed_and_finished = first["length"] is None and len(rows) > 1
        different = len({row["config_hash"] for row in rows}) > 1, len({row["length"] for row in rows}) < len(rows)
        if any(different) or is_failed_and_finished:
            raise ResultsError(f"results: {path} holds two runs under the names {names}")
        try:
            evaluation = None if first["length"] is None else _evaluation(rows)
        except (TypeError, ValueError):
            raise ResultsError(f"results: {path} has impossible counts for {names}") from None
        yield RunRecord(
            evaluation=evaluation,
            curve=curve,
            against=tuple(first[AGAINST] or ()),
            stated=first.get(STATED) or "",
            manifest=first[MANIFEST],
            **{name: first[name] for name in OWN},
        )


def _curves(frame: "polars.DataFrame") -> dict[tuple[object, ...], tuple[CurvePoint, ...]]:
    """Return the training curve of each run, from the first of its rows."""
    firsts = frame.select(*KEY, "curve").unique(KEY, keep="first", maintain_order=True).with_row_index("run")
    points = firsts.select("run", "curve").explode("curve").unnest("curve")
    found: list[list[CurvePoint]] = [[] for _ in range(firsts.height)]
    columns = (points[name].to_list() for name in ("run", *CurvePoint._fields))
    for run, measure, length, step, value in zip(*columns, strict=True):
        if measure is not None:
            found[run].append(CurvePoint(measure, length, step, value))
    return dict(zip(firsts.select(KEY).iter_rows(), map(tuple, found), strict=True))


def _evaluation(rows: list[dict[str, Any]]) -> Evaluation:
    first = rows[0]
    levels = {name.removeprefix("chance_"): level for name, level in first.items() if name.startswith("chance_")}
    chance = {name: level for name, level in levels.items() if level is not None}
    if first["chance"] is None:
        raise ValueError("there is no chance level")
    counts = []
    for row in rows:
        total = row["sequences"]
        queries = {name: row[f"queries_{name}"] for name in chance if row.get(f"queries_{name}") is not None}
        totals = {name: total * queries.get(name, 1) for name in chance}
        right = {name: round(row[f"accuracy_{name}"] * totals[name]) for name in chance}
        is_possible = total >= 1 and 0 <= row["correct"] <= total
        if not is_possible or not all(0 <= right[name] <= totals[name] for name in chance):
            raise ValueError("a count is larger than its total")
        counts.append(Count(row["length"], total, row["correct"], right, queries))
    losses = {row["length"]: row[LOSS] for row in rows if row.get(LOSS) is not None}
    return Evaluation(first["training_length"], tuple(counts), chance, first["chance"], losses)
