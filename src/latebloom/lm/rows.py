"""The rows of tables as documents: datasets that were saved, and parquet, Arrow, JSON, JSON Lines and CSV files.

Rows are read in batches. Those that stay after deduplication are written, one behind the other, to a file beside the
corpus while it is made, because a tokenizer is trained on them in a random order.
"""

import csv
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from latebloom.errors import ConfigError

COLUMNS = ("text", "content")
"""The columns that are looked for if none is named."""
BINARY = (".parquet", ".arrow")
"""Files that are tables wherever they are; the others are text too, so they are tables only if that is said."""
BATCH = 1_000
"""Rows of a parquet file that are read at once."""


@dataclass(frozen=True)
class Tables:
    """Which files are read as tables, and which column has the text."""

    column: str | None = None
    named: frozenset[Path] = frozenset()
    """Files that were given themselves, and not found in a folder."""

    def includes(self, path: Path) -> bool:
        is_said = path in self.named or self.column is not None
        return path.suffix in READERS and (path.suffix in BINARY or is_said)

    def texts(self, path: Path) -> Iterator[str | None] | None:
        """Return the text of each row, None where there is none.

        Without a column of text a table raises if it, or the column, was named; otherwise there are no texts. Of a file
        that was found in a folder and cannot be read there are none either.
        """
        try:
            columns = READERS[path.suffix](path, None)
            names = next(columns)
            wanted = COLUMNS if self.column is None else (self.column,)
            found = next((name for name in wanted if name in names), None)
            if found is not None:
                return self._texts(path, found)
        except StopIteration:
            names = []
        except Exception as error:
            if path in self.named:
                raise _damaged(path, error) from None
            return None
        if self.column is None and path not in self.named:
            return None
        wanted = " or ".join(COLUMNS) if self.column is None else self.column
        has = f"has {', '.join(map(str, names))}" if names else "is empty"
        raise ConfigError(f"column: {path} has no column {wanted}; it {has}; name one with --column")

    def _texts(self, path: Path, column: str) -> Iterator[str | None]:
        try:
            for values in READERS[path.suffix](path, column):
                for value in values:
                    if value is not None and not isinstance(value, str):
                        raise ConfigError(f"column: {column} of {path} has no text, but a {type(value).__name__}")
                    yield value
        except ConfigError:
            raise
        except Exception as error:
            raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ConfigError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return ConfigError(f"data: {path} cannot be read as a {path.suffix} table ({reason[0]})")


def _parquet(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    import polars as pl

    table = pl.scan_parquet(path)
    if column is None:
        yield table.collect_schema().names()
        return
    count = table.select(pl.len()).collect().item()
    for start in range(0, count, BATCH):
        yield table.select(column).slice(start, BATCH).collect()[column].to_list()


def _arrow(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    """Read an Arrow stream batch by batch, or an Arrow file."""
    import polars as pl

    with open(path, "rb") as file:
        if file.read(6) == b"ARROW1":
            table = pl.scan_ipc(path)
            yield table.collect_schema().names() if column is None else table.select(column).collect()[column].to_list()
            return
        file.seek(0)
        before = b""
        for kind, message in _messages(file):
            if kind == RECORDS and column is not None:
                batch = pl.read_ipc_stream(BytesIO(before + message + END), columns=[column])
                yield batch[column].to_list()
            elif kind != RECORDS:  # the schema, and dictionaries that records refer to
                before += message
            if column is None:
                yield pl.read_ipc_stream(BytesIO(before + END)).columns
                return


RECORDS = 3
"""The type of a message of an Arrow stream that has rows."""
END = struct.pack("<Ii", 0xFFFFFFFF, 0)


def _messages(file: Any) -> Iterator[tuple[int, bytes]]:
    """Yield type and bytes of each message: polars reads whole streams only, which may not fit into memory.

    A message is a marker, the size of its description, the description (a FlatBuffer), and as many bytes as that says.
    """
    while len(head := file.read(8)) == 8:
        marker, size = struct.unpack("<Ii", head)
        if marker != 0xFFFFFFFF:
            raise ValueError("it is not an Arrow stream")
        if size == 0:
            return
        description = file.read(size)
        (table,) = struct.unpack_from("<I", description)
        (back,) = struct.unpack_from("<i", description, table)

        def field(number: int, form: str, at: int = table - back, table: int = table, within: bytes = description):
            length = struct.unpack_from("<H", within, at)[0]
            offset = struct.unpack_from("<H", within, at + 4 + 2 * number)[0] if 4 + 2 * number < length else 0
            return struct.unpack_from(form, within, table + offset)[0] if offset else 0

        body = file.read(length := field(3, "<q"))
        if len(description) != size or len(body) != length:
            raise ValueError("it ends in the middle of a batch")
        yield field(1, "<B"), head + description + body
    if head:
        raise ValueError("it ends in the middle of a batch")


def _json_lines(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    with open(path, encoding="utf-8-sig") as file:
        rows = (json.loads(line) for line in file if line.strip())
        yield from _of_objects(rows, column)


def _json(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    """Read a list of objects, which is read as a whole, or lines."""
    with open(path, encoding="utf-8-sig") as file:
        if file.read(1) == "[":
            file.seek(0)
            yield from _of_objects(json.load(file), column)
            return
    yield from _json_lines(path, column)


def _of_objects(rows: Any, column: str | None) -> Iterator[Sequence[Any]]:
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError("a row is not a JSON object")
        yield list(row) if column is None else [row.get(column)]


def _csv(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        if column is None:
            yield list(rows.fieldnames or [])
            return
        for row in rows:
            yield [row[column]]


READERS: dict[str, Callable[[Path, str | None], Iterator[Sequence[Any]]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
}
"""Each yields the names of the columns if no column is given, and otherwise its values in batches."""


def saved_shards(folder: Path) -> set[str] | None:
    """Return the names of the files of a dataset that `Dataset.save_to_disk` wrote to a folder; None if it did not."""
    state = folder / "state.json"
    if not state.is_file() or not (folder / "dataset_info.json").is_file():
        return None
    try:
        return {str(one["filename"]) for one in json.loads(state.read_text())["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
