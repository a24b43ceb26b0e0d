"""Tables as text: each kind of file gives the corpus that the same texts give, and a wrong column is one sentence."""

import csv
import json
import shutil
import struct
from io import BytesIO
from pathlib import Path

import polars as pl
import pytest
from saved_datasets import COUNTS, DATA, columns
from saved_datasets import texts as saved_texts
from small_lm import SMALL

from latebloom.cli import main
from latebloom.errors import ConfigError
from latebloom.lm import rows
from latebloom.lm.corpus import DOCUMENTS, MANIFEST, Corpus, Tokens
from latebloom.lm.documents import list_files
from latebloom.lm.prepare import ROWS, Preparing, prepare
from latebloom.lm.rows import END, Tables
from latebloom.lm.tokenizer import read_tokenizer


@pytest.fixture(scope="module")
def lines(texts: Path) -> list[str]:
    return [path.read_text() for path, _ in list_files([texts])]


def write_stream(path: Path, texts: list[str], size: int, column: str = "text") -> None:
    """Write an Arrow stream as `datasets` does: a schema, and then batches of so many rows."""
    stream = b""
    for start in range(0, len(texts), size):
        one = BytesIO()
        frame = pl.DataFrame({"id": range(len(texts[start : start + size])), column: texts[start : start + size]})
        frame.write_ipc_stream(one, compat_level=pl.CompatLevel.oldest())
        whole = one.getvalue()
        schema = 8 + struct.unpack_from("<i", whole, 4)[0]
        stream += whole[schema if stream else 0 : -len(END)]
    path.write_bytes(stream + END)


def save_dataset(folder: Path, texts: list[str], shards: int = 2) -> None:
    """Write the files of `Dataset.save_to_disk`, and two that are no part of the dataset."""
    folder.mkdir(parents=True)
    names = [f"data-{index:05}-of-{shards:05}.arrow" for index in range(shards)]
    each = -(-len(texts) // shards)
    for index, name in enumerate(names):
        write_stream(folder / name, texts[index * each : (index + 1) * each], 7)
    write_stream(folder / "cache-1234.arrow", ["cached\n" * 5], 7)
    write_stream(folder / "data-00000-of-00009.arrow", ["of an earlier version\n" * 5], 7)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def write_table(path: Path, texts: list[str], column: str = "text") -> Path:
    frame = pl.DataFrame({"id": range(len(texts)), column: texts})
    if path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=20)
    elif path.suffix == ".arrow":
        write_stream(path, texts, 7, column)
    elif path.suffix == ".feather":
        frame.write_ipc(path := path.with_name("file.arrow"))
    elif path.suffix == ".json":
        path.write_text(json.dumps(frame.to_dicts()))
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in frame.to_dicts()))
    else:
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([("id", column), *frame.rows()])
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather", "json", "jsonl", "csv"])
def test_every_kind_of_table_gives_the_texts_of_its_rows(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(rows, "BATCH", 7)
    texts = [f'line {i}, "quoted"\nand ü {i * i}\n' for i in range(50)]
    for column in ("text", "content", "body"):
        path = write_table(tmp_path / f"table.{suffix}", texts, column)
        found = Tables("body" if column == "body" else None, frozenset([path])).texts(path)
        assert found is not None
        assert list(found) == texts


def test_a_saved_dataset_gives_a_corpus_of_its_rows(lines, tmp_path, capsys):
    """The rows are deduplicated, split, and read in their order; files beside the shards are not."""
    save_dataset(tmp_path / "dataset" / "train", [*lines[:40], lines[41].replace("\n", "\n\n"), lines[3], "", "  "])
    save_dataset(tmp_path / "dataset" / "test", lines[40:], 1)
    (tmp_path / "dataset" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    out = tmp_path / "corpus"
    main(["lm", "prepare", str(tmp_path / "dataset"), "--out", str(out), "--vocabulary", "320", "--test", "20%"])
    said = capsys.readouterr().out
    assert "Rows left out: 2 duplicate, 2 empty. A row is never divided between splits." in said
    made = Corpus.load(out, verify=True)
    tokenizer, _ = read_tokenizer(out)
    listed = [json.loads(line) for line in (out / DOCUMENTS).read_text().splitlines()[1:]]
    decoded = {}
    for split in ("train", "validation", "test"):
        tokens = made.split(split)
        ends = tokens.document_ends(made.end_token).tolist()
        texts = [tokenizer.decode(tokens.read(a, b - 1).tolist()) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        decoded |= dict(zip([one["name"] for one in listed if one["split"] == split], texts, strict=True))
    assert sorted(decoded.values()) == sorted(lines)
    assert decoded["train/data-00000-of-00002.arrow#3"] == lines[3]
    assert not (out / ROWS).exists()
    again = prepare([tmp_path / "dataset"], tmp_path / "again", Preparing(vocabulary=320, test=0.2))
    assert again.hash == made.hash


def test_a_corpus_of_rows_is_continued_and_a_changed_table_is_refused(lines, tmp_path, monkeypatch):
    table, out = write_table(tmp_path / "table.parquet", lines), tmp_path / "corpus"
    whole = prepare([table], tmp_path / "whole", SMALL)

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("latebloom.lm.prepare._write_tokens", die)
    with pytest.raises(Killed):
        prepare([table], out, SMALL)
    monkeypatch.undo()
    assert not (out / MANIFEST).exists()
    assert prepare([table], out, SMALL).hash == whole.hash
    content = table.read_bytes()
    table.write_bytes(content[::-1])
    with pytest.raises(ConfigError, match=r"table.parquet is another\); give a new --out"):
        prepare([table], out, SMALL)


def test_tables_in_a_folder_of_code_do_not_disturb_it(texts, corpus, tmp_path):
    """A parquet file without text, or damaged, is left out; JSON and CSV files are text unless a column is named."""
    folder = tmp_path / "texts"
    folder.mkdir()
    write_table(folder / "numbers.parquet", ["a"], "label")
    (folder / "damaged.parquet").write_bytes(b"PAR1 and no more")
    write_table(folder / "table.csv", [f"of row {i}" for i in range(5)], "body")
    made = prepare([texts, folder], tmp_path / "files", SMALL)
    assert made.manifest["left_out"] == {"table without text": 2}
    listed = (made.folder / DOCUMENTS).read_text()
    assert "table.csv#" not in listed
    for file in folder.glob("*.parquet"):
        file.unlink()
    made = prepare([texts, folder], tmp_path / "rows", Preparing(vocabulary=320, column="body"))
    assert "table.csv#4" in (made.folder / DOCUMENTS).read_text()


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.parquet", None, None, "column: .*a.parquet has no column text or content; it has id, label; name one with"),
        ("a.csv", None, "body", "column: .*a.csv has no column body; it has id, label; name one with --column"),
        ("a.jsonl", None, "id", "column: id of .*a.jsonl is not text, but int"),
        ("a.parquet", b"PAR1 and no more", None, r"data: .*a.parquet cannot be read as a .parquet table \("),
        ("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0half", None, r"data: .*a.arrow cannot be read as a .arrow table \("),
        ("a.jsonl", b'{"text": "a"}\n{"text', None, r"data: .*a.jsonl cannot be read as a .jsonl table \("),
        ("a.json", b"", None, "column: .*a.json has no column text or content; it is empty"),
    ],
)
def test_a_bad_table_is_one_sentence_and_leaves_nothing(tmp_path, name, content, column, message):
    path = tmp_path / name
    if content is None:
        write_table(path, ["one", "two"], "label")
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        prepare([path], tmp_path / "corpus", Preparing(vocabulary=320, column=column))
    assert "\n" not in str(error.value)
    assert list((tmp_path / "corpus").iterdir()) == []


FORMATS = ("dataset_dict", "rows.parquet", "rows.jsonl", "rows.json", "rows.csv")


def read_rows(path: Path, column: str | None = None) -> list[str | None]:
    """Return the texts of all rows, in the order of the files."""
    found = []
    for file, _ in list_files([path]):
        texts = Tables(column, frozenset([file])).texts(file)
        assert texts is not None
        found += texts
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_the_library_datasets_are_read(name):
    """Shards, null and empty rows, beside numbers, labels, nested columns and one without values; see `data`."""
    found, (first, last) = read_rows(DATA / name), COUNTS["test"]
    in_order = saved_texts()
    if name == "dataset_dict":  # test comes before train
        in_order = in_order[first:last] + in_order[:first]
    assert [text or "" for text in found] == [text or "" for text in in_order]


@pytest.mark.parametrize("name", FORMATS[:-1])
def test_a_nested_column_is_named_with_its_fields(name):
    wanted = columns()
    assert sorted(map(str, read_rows(DATA / name, "about.title"))) == sorted(one["title"] for one in wanted["about"])
    said = ["\n".join(one["content"] for one in row if one["content"] is not None) for row in wanted["messages"]]
    assert sorted(map(str, read_rows(DATA / name, "messages.content"))) == sorted(said)
    with pytest.raises(ConfigError, match=r"has no column about; it has id, .*about.language, .*; name one with"):
        read_rows(DATA / name, "about")
    with pytest.raises(ConfigError, match=r"column: vector of .* is not text, but float"):
        read_rows(DATA / name, "vector")


@pytest.mark.parametrize("name", ["dataset", "dataset_dict"])
def test_a_dataset_that_the_library_saved_gives_a_corpus(name, tmp_path):
    """One is shuffled; the rows that stay are those with a text of their own."""
    made = prepare([DATA / name], tmp_path / "corpus", SMALL)
    assert made.manifest["left_out"] == {"duplicate": 1, "empty": 3}
    listed = [json.loads(line) for line in (tmp_path / "corpus" / DOCUMENTS).read_text().splitlines()[1:]]
    assert len(listed) == 20
    of_one = {text.strip() for text in saved_texts() if text is not None} - {""}
    tokenizer, _ = read_tokenizer(made.folder)
    parts = (tokenizer.decode(split.read(0, len(split)).tolist(), skip_special_tokens=False) for split in splits(made))
    assert {text.strip() for part in parts for text in part.split("<|endoftext|>")} - {""} == of_one


def splits(corpus: Corpus) -> list[Tokens]:
    return [corpus.split("train"), corpus.split("validation"), corpus.split("test")]


def test_a_saved_dataset_names_its_columns_and_a_missing_file(tmp_path):
    """It was given to be read, so it is an error and nothing to leave out."""
    folder = tmp_path / "dataset"
    shutil.copytree(DATA / "dataset_dict", folder)
    (shard,) = (folder / "test").glob("*.arrow")
    frame = pl.read_ipc_stream(shard).rename({"text": "body"})
    frame.write_ipc_stream(shard)
    with pytest.raises(ConfigError, match=rf"column: {shard} has no column text or content; it has id, body, label"):
        prepare([folder], tmp_path / "corpus", SMALL)
    shard.unlink()
    with pytest.raises(ConfigError, match=rf"data: {shard.parent} is a saved dataset without its file {shard.name}; "):
        prepare([folder], tmp_path / "corpus", SMALL)


def test_a_type_that_is_not_known_is_one_sentence(tmp_path, monkeypatch):
    """polars panics there, which is no Exception; the same table in a folder of text is left out."""
    path = write_table(tmp_path / "a.arrow", ["one"])

    def panic(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("not yet implemented\nat a line")

    monkeypatch.setattr(pl, "read_ipc_stream", panic)
    with pytest.raises(ConfigError, match=r"cannot be read as a .arrow table \(not yet implemented\)"):
        Tables(named=frozenset([path])).texts(path)
    assert Tables().texts(path) is None


def test_an_arrow_stream_that_ends_early_is_refused(tmp_path):
    path = tmp_path / "a.arrow"
    write_stream(path, [f"text {i}" for i in range(30)], 7)
    path.write_bytes(path.read_bytes()[:-200])
    found = Tables(named=frozenset([path])).texts(path)
    assert found is not None
    with pytest.raises(ConfigError, match=r"cannot be read as a .arrow table \(it ends in the middle of a batch\)"):
        list(found)
