"""The results file: parquet, a row for each run and length, with a mark that says which format it is.

A run's own columns (configuration, command, training curve, ...) stand on each of its rows; compression makes that
nearly free, and a row can be taken out of the file and still be understood. A run that failed has one row without a
length. An answer NAME of a task has the columns accuracy_NAME and chance_NAME.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latebloom.errors import ResultsError, catch_full_disk
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import Evaluation
from latebloom.results.record import CurvePoint, RunRecord

if TYPE_CHECKING:
    import polars

RESULTS_FILE, TUNING_FILE = "results.parquet", "tuning.parquet"
"""In a study's folder: its runs, and those on which settings were chosen."""
FORMAT = "1"
MARK = "latebloom_results"
KEY = ("study", "task", "training_length", "arm", "seed")
ALWAYS = ("sum", "recall")
"""Answers whose columns are there even if no task asks for them."""
RUN_NUMBERS = ("switch_step", "steps", "seconds", "stacked")
RUN_TEXTS = ("failure", "config", "config_hash", "versions", "machine", "commit", "command")
AGAINST = "against"
"""A column that files of before it was there lack, which says that every arm was compared with every other."""
NEVER_NULL = (*KEY, "config", "config_hash", "command")


def schema(answers: Iterable[str] = ALWAYS) -> dict[str, Any]:
    """The columns and their types."""
    import polars as pl

    texts = dict.fromkeys(RUN_TEXTS, pl.String)
    point = pl.Struct({"measure": pl.String, "length": pl.Int32, "step": pl.Int32, "value": pl.Float32})
    return {
        "study": pl.String,
        "task": pl.String,
        "arm": pl.String,
        "seed": pl.Int64,
        "training_length": pl.Int32,
        "length": pl.Int32,
        "accuracy": pl.Float64,
        **{f"accuracy_{name}": pl.Float64 for name in answers},
        "sequences": pl.Int32,
        "correct": pl.Int32,
        "chance": pl.Float64,
        **{f"chance_{name}": pl.Float64 for name in answers},
        "switch_step": pl.Int32,
        "steps": pl.Int32,
        "seconds": pl.Float64,
        "stacked": pl.Int32,
        **texts,
        "curve": pl.List(point),
        AGAINST: pl.List(pl.String),
    }


def write_results(path: Path, records: Sequence[RunRecord]) -> None:
    """Write a results file in one move: a reader sees the old one or the new one."""
    import polars as pl

    from latebloom.engine.checkpoint import write_file

    asked = (name for record in records if record.evaluation for name in record.evaluation.chance)
    answers = tuple(dict.fromkeys((*ALWAYS, *asked)))
    rows = [row for record in records for row in _rows(record)]
    content = BytesIO()
    pl.DataFrame(rows, schema=schema(answers)).write_parquet(content, compression="zstd", metadata={MARK: FORMAT})
    try:
        with catch_full_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content.getvalue())
    except OSError as error:
        raise ResultsError(f"results: {path} cannot be written ({error.strerror})") from None


def read_results(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs of one or several files, in the order in which they stand there."""
    records: list[RunRecord] = []
    origin: dict[tuple[object, ...], Path] = {}
    for path in paths:
        for record in _records(read_frame(path), path):
            if record.key in origin:
                where = f"both {origin[record.key]} and {path}"
                raise ResultsError(f"results: the run {record.name} is in {where}")
            origin[record.key] = path
            records.append(record)
    return records


def read_frame(path: Path) -> "polars.DataFrame":
    """One file as a table, checked to be what this version writes."""
    import polars as pl

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"results: {path} cannot be read ({error.strerror})") from None
    try:
        mark = pl.read_parquet_metadata(BytesIO(content)).get(MARK)
        frame = pl.read_parquet(BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # some damage makes polars panic
        raise ResultsError(f"results: {path} is not a parquet file, or a damaged one") from None
    if mark is None:
        raise ResultsError(f"results: {path} is a parquet file of something else; it has no mark {MARK}")
    if mark != FORMAT:
        raise ResultsError(f"results: {path} has format {mark}; this version reads {FORMAT}")
    if AGAINST not in frame.columns:
        frame = frame.with_columns(pl.lit([], dtype=pl.List(pl.String)).alias(AGAINST))
    wanted = schema()
    lacking = [name for name in wanted if name not in frame.columns]
    if lacking:
        raise ResultsError(f"results: {path} lacks the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
    wrong = [
        f"{name} ({frame.schema[name]}, not {kind})" for name, kind in wanted.items() if frame.schema[name] != kind
    ]
    wrong += [f"{name} (empty in places)" for name in NEVER_NULL if frame[name].null_count()]
    if wrong:
        raise ResultsError(f"results: {path} has columns that are not as they should be: {'; '.join(wrong)}")
    if frame.is_empty():
        raise ResultsError(f"results: {path} holds no run")
    return frame


def _rows(record: RunRecord) -> Iterable[dict[str, Any]]:
    own = {
        **{name: getattr(record, name) for name in (*KEY, *RUN_NUMBERS)},
        **{name: getattr(record, name) for name in RUN_TEXTS},
        "curve": [vars(point) for point in record.curve],
        AGAINST: list(record.against),
    }
    evaluation = record.evaluation
    if evaluation is None:
        yield own
        return
    for count in evaluation.counts:
        yield own | {
            "length": count.length,
            "accuracy": count.accuracy,
            "sequences": count.sequences,
            "correct": count.correct,
            "chance": evaluation.chance_all,
            **{f"accuracy_{name}": count.accuracy_of(name) for name in evaluation.chance},
            **{f"chance_{name}": level for name, level in evaluation.chance.items()},
        }


def _records(frame: "polars.DataFrame", path: Path) -> Iterable[RunRecord]:
    """The frame's runs; their rows need not stand together."""
    for part in frame.partition_by(KEY, maintain_order=True):
        rows = part.drop("curve").sort("length").to_dicts()
        first = rows[0]
        names = ", ".join(str(first[name]) for name in KEY)
        is_failed_and_finished = first["length"] is None and len(rows) > 1
        if part["config_hash"].n_unique() > 1 or part["length"].is_duplicated().any() or is_failed_and_finished:
            raise ResultsError(f"results: {path} holds two runs under the names {names}")
        curve = (CurvePoint(**point) for point in part["curve"][0].to_list()) if part["curve"][0] is not None else ()
        try:
            evaluation = None if first["length"] is None else _evaluation(rows)
        except (TypeError, ValueError):
            raise ResultsError(f"results: {path} has counts that make no sense for {names}") from None
        own = (*KEY, *RUN_NUMBERS, *RUN_TEXTS)
        against = tuple(first[AGAINST] or ())
        of_run = {name: first[name] for name in own}
        yield RunRecord(evaluation=evaluation, curve=tuple(curve), against=against, **of_run)


def _evaluation(rows: list[dict[str, Any]]) -> Evaluation:
    first = rows[0]
    chance = {
        name.removeprefix("chance_"): level
        for name, level in first.items()
        if name.startswith("chance_") and level is not None
    }
    if first["chance"] is None:
        raise ValueError("no level of guessing")
    counts = []
    for row in rows:
        total = row["sequences"]
        right = {name: round(row[f"accuracy_{name}"] * total) for name in chance}
        if not all(0 <= count <= total for count in (row["correct"], *right.values())) or total < 1:
            raise ValueError("a count beyond its total")
        counts.append(Count(row["length"], total, row["correct"], right))
    return Evaluation(first["training_length"], tuple(counts), chance, first["chance"])
