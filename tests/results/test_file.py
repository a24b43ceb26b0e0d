"""The results file: what is written is what is read, and anything else is refused in one sentence."""

import random
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import curve, evaluation, record, study

from latebloom import Evaluation
from latebloom.errors import ResultsError
from latebloom.evaluation import Count
from latebloom.results.file import FORMAT, MARK, read_frame, read_results, write_results

names = st.text(min_size=1, max_size=20)


@st.composite
def evaluations(draw):
    lengths = draw(st.lists(st.integers(2, 500), min_size=1, max_size=6, unique=True))
    asked = draw(st.sampled_from([("sum",), ("recall",), ("sum", "recall"), ("order", "sum")]))
    counts = []
    for length in sorted(lengths):
        total = draw(st.integers(1, 5000))
        right = {name: draw(st.integers(0, total)) for name in asked}
        counts.append(Count(length, total, draw(st.integers(0, min(right.values()))), right))
    return Evaluation(25, tuple(counts), dict.fromkeys(asked, 0.25), 0.25 ** len(asked))


@given(st.lists(st.tuples(names, st.none() | evaluations()), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
def test_what_is_written_is_what_is_read(tmp_path_factory, arms):
    path = tmp_path_factory.mktemp("results") / "a.parquet"
    records = [
        replace(
            record(arm, place, seen, switch_step=place or None, failure=None if seen else "stopped"),
            against=tuple(other for other, _ in arms[:place]),
        )
        for place, (arm, seen) in enumerate(arms)
    ]
    write_results(path, records)
    assert read_results([path]) == records


def test_a_file_of_before_arms_were_held_against_others_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    runs = [replace(record("dat", 3, evaluation({25: 0.9})), against=("joint",))]
    write_results(path, runs)
    pl.read_parquet(path).drop("against").write_parquet(path, metadata={MARK: FORMAT})
    assert read_results([path]) == [replace(runs[0], against=())]


def test_several_queries_of_a_sequence_are_counted_one_by_one(tmp_path):
    one = Count(25, 100, 40, {"parity": 1290, "recall": 333}, {"parity": 13, "recall": 6})
    other = Count(50, 100, 4, {"parity": 2490, "recall": 633}, {"parity": 25, "recall": 12})
    seen = Evaluation(25, (one, other), {"parity": 0.5, "recall": 1 / 64}, 0.0)
    records = [record("mixed", 0, seen), record("joint", 1, evaluation({25: 1.0}))]
    write_results(tmp_path / "r.parquet", records)
    assert read_results([tmp_path / "r.parquet"]) == records
    frame = read_frame(tmp_path / "r.parquet")
    assert frame["queries_recall"].to_list() == [6, 12, None]
    write_results(tmp_path / "plain.parquet", records[1:])
    assert not any(name.startswith("queries") for name in read_frame(tmp_path / "plain.parquet").columns)


def test_there_is_a_row_for_each_run_and_length_with_the_promised_columns(tmp_path):
    seen = evaluation({25: 0.9, 50: 0.5}, sequences=100)
    only_sum = Evaluation(25, (Count(25, 10, 7, {"sum": 7}),), {"sum": 0.1}, 0.1)
    runs = [record("dat", 3, seen, switch_step=900), record("lstm", 3, only_sum), record("joint", 4, None, failure="x")]
    write_results(tmp_path / "a.parquet", runs)
    frame = pl.read_parquet(tmp_path / "a.parquet")  # as anyone would
    columns = ["study", "task", "arm", "seed", "training_length", "length", "accuracy", "accuracy_sum"]
    columns += ["accuracy_recall", "sequences", "correct", "switch_step", "steps"]
    assert frame.select(columns).rows() == [
        ("paper", "composite", "dat", 3, 25, 25, 0.9, 0.9, 1.0, 100, 90, 900, 15_000),
        ("paper", "composite", "dat", 3, 25, 50, 0.5, 0.5, 1.0, 100, 50, 900, 15_000),
        ("paper", "composite", "lstm", 3, 25, 25, 0.7, 0.7, None, 10, 7, None, 15_000),
        ("paper", "composite", "joint", 4, 25, None, None, None, None, None, None, None, None),
    ]
    about = ("seconds", "config", "config_hash", "versions", "machine", "commit", "command", "failure", "curve")
    assert set(about) <= set(frame.columns)


def test_a_hundred_and_fifty_runs_take_less_than_two_megabytes(tmp_path):
    rng = random.Random(0)
    runs = []
    for seed in range(150):
        noisy = [point._replace(value=rng.random()) for point in curve(rng, 1.0, 1.0, 9000)]
        levels = {25 * n: rng.random() for n in range(1, 12)}
        runs.append(record("dat", seed, evaluation(levels), curve=noisy))
    write_results(tmp_path / "a.parquet", runs)
    assert (tmp_path / "a.parquet").stat().st_size < 2_000_000
    assert len(read_results([tmp_path / "a.parquet"])) == 150


def test_several_files_are_read_as_one_and_a_run_in_two_of_them_is_refused(tmp_path):
    runs = study(seeds=2)
    write_results(tmp_path / "a.parquet", runs[:3])
    write_results(tmp_path / "b.parquet", runs[3:])
    write_results(tmp_path / "c.parquet", runs[2:4])
    found = read_results([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert [run.key for run in found] == [run.key for run in runs]
    with pytest.raises(
        ResultsError, match=r"the run paper, composite up to 25, transformer, seed 0 is in both .*a.parquet and .*c.pa"
    ):
        read_results([tmp_path / "a.parquet", tmp_path / "c.parquet"])


def changed(tmp_path, change, mark: str | None = FORMAT):
    """A results file after a change to its table."""
    path = tmp_path / "a.parquet"
    write_results(path, study(seeds=1))
    change(read_frame(path)).write_parquet(path, metadata={MARK: mark} if mark else None)
    return path


SPOILT = {
    "no column": (lambda frame: frame.drop("accuracy", "length"), "lacks the columns length, accuracy"),
    "one column": (lambda frame: frame.drop("command"), "lacks the column command"),
    "a text": (lambda frame: frame.with_columns(pl.col("length").cast(pl.String)), r"length \(String, not Int32\)"),
    "no seed": (lambda frame: frame.with_columns(seed=pl.lit(None, pl.Int64)), r"seed \(empty in places\)"),
    "empty": (lambda frame: frame.clear(), "holds no run"),
    "twice": (lambda frame: pl.concat([frame, frame]), "holds two runs under the names paper"),
    "no length": (
        lambda frame: frame.with_columns(
            length=pl.when(pl.int_range(pl.len()) == 0).then(None).otherwise(pl.col("length"))
        ),
        "holds two runs under the names",
    ),
    "too many right": (lambda frame: frame.with_columns(correct=pl.col("sequences") + 1), "impossible counts"),
    "no chance": (lambda frame: frame.with_columns(chance=pl.lit(None, pl.Float64)), "impossible counts"),
    "no count": (lambda frame: frame.with_columns(correct=pl.lit(None, pl.Int32)), "impossible counts"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_table_that_is_not_ours_is_one_error(tmp_path, what):
    change, sentence = SPOILT[what]
    path = changed(tmp_path, change)
    with pytest.raises(ResultsError, match=sentence) as caught:
        read_results([path])
    assert str(path) in str(caught.value)


def test_a_file_of_another_version_or_of_another_kind_is_one_error(tmp_path):
    with pytest.raises(ResultsError, match="has format 99; this version reads 1"):
        read_results([changed(tmp_path, lambda frame: frame, "99")])
    with pytest.raises(ResultsError, match="parquet file of something else; it has no mark latebloom_results"):
        read_results([changed(tmp_path, lambda frame: frame, None)])
    other = tmp_path / "b.parquet"
    for content in (b"", b"no parquet", b"PAR1" + bytes(100) + b"PAR1"):
        other.write_bytes(content)
        with pytest.raises(ResultsError, match=r"b.parquet is not a parquet file, or a damaged one"):
            read_results([other])
    with pytest.raises(ResultsError, match=r"none.parquet cannot be read \(No such file"):
        read_results([tmp_path / "none.parquet"])
    with pytest.raises(ResultsError, match=r"cannot be read \(it is a folder"):
        read_results([tmp_path])


@pytest.mark.parametrize("seed", range(5))
def test_a_file_cut_short_is_one_error(tmp_path, seed):
    path = tmp_path / "a.parquet"
    write_results(path, study(seeds=1))
    whole = path.read_bytes()
    path.write_bytes(whole[: random.Random(seed).randrange(len(whole))])
    with pytest.raises(ResultsError, match="not a parquet file, or a damaged one"):
        read_results([path])


def test_nothing_but_the_error_is_said_about_changed_metadata(tmp_path, capfd):
    path = tmp_path / "a.parquet"
    write_results(path, study(seeds=1))
    whole = path.read_bytes()
    metadata = int.from_bytes(whole[-8:-4], "little")  # their size stands before the last four bytes
    for place in range(len(whole) - 8 - metadata, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(ResultsError, match="damaged"):
            read_results([path])
    assert capfd.readouterr().err == ""  # polars would print a panic for a few of them


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.parquet"
    write_results(path, study(seeds=1))
    before = path.read_bytes()
    (tmp_path / ".writing-a.parquet").mkdir()  # where the new one would be prepared
    with pytest.raises(ResultsError, match=r"results: .*a.parquet cannot be written"):
        write_results(path, study(seeds=2))
    assert path.read_bytes() == before
    with pytest.raises(ResultsError, match="cannot be written"):
        write_results(path / "b.parquet", study(seeds=1))
