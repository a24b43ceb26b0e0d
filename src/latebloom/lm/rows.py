"""The rows of tables as documents: datasets that were saved, and parquet, Arrow, JSON, JSON Lines and CSV files.

Rows are read in batches. Those that stay after deduplication are written, one behind the other, to a file beside the
corpus while it is made, because a tokenizer is trained on them in a random order.
"""

import csv
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from latebloom.errors import ConfigError, first_line
from latebloom.reading import read_json_file

COLUMNS = ("text", "content")
"""The columns that are looked for if none is named."""
BINARY = (".parquet", ".arrow")
"""Files that are tables wherever they are; the others are text too, so they are tables only if that is said."""
BATCH = 1_000
"""Rows of a parquet file that are read at once."""
LOOKED_AT = 100
"""Objects of a JSON file that say which columns it has."""
NAMED = 12
"""Columns that an error names."""
Place = tuple[str, ...]
"""A column and, of a nested one, the fields within it; written `column.field`."""


@dataclass(frozen=True)
class Tables:
    """Which files are read as tables, and which column has the text."""

    column: str | None = None
    """A column, or a field of a nested one, such as `messages.content`. Of a list it is the texts of all items, one per
    line."""
    named: frozenset[Path] = frozenset()
    """Files that were given themselves, or with a saved dataset, and not found in a folder."""

    @classmethod
    def given(cls, column: str | None, paths: Iterable[Path], files: Iterable[Path]) -> "Tables":
        """Return the tables among files, of which a user gave some paths."""
        given = {path.resolve() for path in paths if path.is_file() or is_saved(path)}
        return cls(column, frozenset(file for file in files if not given.isdisjoint((file, *file.parents))))

    def includes(self, path: Path) -> bool:
        is_said = path in self.named or self.column is not None
        return path.suffix in READERS and (path.suffix in BINARY or is_said)

    def texts(self, path: Path) -> Iterator[str | None] | None:
        """Return the text of each row, None where there is none.

        Without a column of text a table raises if it, or the column, was named; otherwise there are no texts. Of a file
        that was found in a folder and cannot be read there are none either.
        """
        try:
            places = {".".join(place): place for place in next(READERS[path.suffix](path, None))}
        except StopIteration:
            places = {}
        except Exception as error:
            if path in self.named:
                raise _damaged(path, error) from None
            return None
        wanted = COLUMNS if self.column is None else (self.column,)
        if found := next((places[name] for name in wanted if name in places), None):
            return self._texts(path, found)
        if self.column is None and path not in self.named:
            return None
        shown = [*islice(places, NAMED), *["more"] * (len(places) > NAMED)]
        has = f"has {', '.join(shown)}" if places else "is empty"
        raise ConfigError(f"column: {path} has no column {' or '.join(wanted)}; it {has}; name one with --column")

    def _texts(self, path: Path, place: Place) -> Iterator[str | None]:
        try:
            for values in READERS[path.suffix](path, place[0]):
                for value in values:
                    yield _text(value, place[1:])
        except _NoText as error:
            kind = str(error)
            raise ConfigError(f"column: {'.'.join(place)} of {path} is not text, but {kind}") from None
        except Exception as error:
            raise _damaged(path, error) from None


class _NoText(Exception):  # noqa: N818 (it becomes a ConfigError)
    """A value that is no text; the message is its type."""


def _text(value: Any, fields: Place) -> str | None:
    """Return the text of a value of a column, or None if it has none."""
    if isinstance(value, list):
        found = [text for one in value if (text := _text(one, fields)) is not None]
        return "\n".join(found) if found else None
    if fields and isinstance(value, dict):
        return _text(value.get(fields[0]), fields[1:])
    if value is not None and (fields or not isinstance(value, str)):
        raise _NoText(type(value).__name__)
    return value


def _damaged(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"data: {path} cannot be read as a {path.suffix} table ({first_line(error)})")


@contextmanager
def _catch_panics() -> Iterator[None]:
    """Raise a ValueError where polars panics, which is no Exception, at types of columns that it does not know."""
    import polars as pl

    try:
        yield
    except pl.exceptions.PanicException as error:
        raise ValueError(first_line(error)) from None


def _places(schema: Mapping[str, Any]) -> Iterator[Place]:
    """Yield the columns of a table, and the fields of nested ones."""
    for name, kind in schema.items():
        while (inner := getattr(kind, "inner", None)) is not None:  # of a list
            kind = inner
        fields = getattr(kind, "fields", None)
        if not fields:
            yield (name,)
        for place in _places({one.name: one.dtype for one in fields or ()}):
            yield (name, *place)


def _parquet(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    import polars as pl

    with _catch_panics():
        table = pl.scan_parquet(path)
        if column is None:
            yield list(_places(table.collect_schema()))
            return
        count = table.select(pl.len()).collect().item()
        for start in range(0, count, BATCH):
            yield table.select(column).slice(start, BATCH).collect()[column].to_list()


def _arrow(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    """Read an Arrow stream batch by batch, or an Arrow file."""
    import polars as pl

    with _catch_panics(), open(path, "rb") as file:
        if file.read(6) == b"ARROW1":
            table = pl.scan_ipc(path)
            if column is None:
                yield list(_places(table.collect_schema()))
            else:
                yield table.select(column).collect()[column].to_list()
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
                yield list(_places(pl.read_ipc_stream(BytesIO(before + END)).schema))
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


def _of_objects(rows: Iterable[Any], column: str | None) -> Iterator[Sequence[Any]]:
    if column is None:
        places = dict.fromkeys(place for row in islice(rows, LOOKED_AT) for place in _places_of(row))
        yield list(places)
        return
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError("a row is not a JSON object")
        yield [row.get(column)]


def _places_of(row: Any) -> Iterator[Place]:
    """Yield the columns of an object, and the fields of nested ones."""
    if not isinstance(row, dict):
        raise ValueError("a row is not a JSON object")
    for name, value in row.items():
        while isinstance(value, list):
            value = value[0] if value else None
        if not isinstance(value, dict):
            yield (name,)
        else:
            yield from ((name, *place) for place in _places_of(value))


def _csv(path: Path, column: str | None) -> Iterator[Sequence[Any]]:
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        if column is None:
            yield [(name,) for name in rows.fieldnames or []]
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
"""Each yields the places of text if no column is given, and otherwise the values of the column in batches."""


def is_saved(folder: Path) -> bool:
    """Return whether `Dataset.save_to_disk` or that of a DatasetDict wrote a folder."""
    return saved_shards(folder) is not None or (folder / "dataset_dict.json").is_file()


def saved_shards(folder: Path) -> set[str] | None:
    """Return the names of the files of a dataset that `Dataset.save_to_disk` wrote to a folder; None if it did not."""
    state = folder / "state.json"
    if not state.is_file() or not (folder / "dataset_info.json").is_file():
        return None
    try:
        return {str(one["filename"]) for one in read_json_file(state, follow=True)["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
