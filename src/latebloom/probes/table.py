"""The small typed table that a probe returns, and the description of its chart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Kind = Literal["text", "whole", "number"]
TYPES: dict[Kind, tuple[type, ...]] = {"text": (str,), "whole": (int,), "number": (int, float)}


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind
    about: str
    """What it holds, in a few words."""
    optional: bool = False
    """Whether a cell may be empty (None)."""


@dataclass(frozen=True)
class Table:
    """Rows of one type: a cell for each column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise TypeError(f"a row has {len(row)} cells, and the table has {len(self.columns)} columns")
            for column, cell in zip(self.columns, row, strict=True):
                is_empty = cell is None and column.optional
                if not is_empty and (not isinstance(cell, TYPES[column.kind]) or isinstance(cell, bool)):
                    raise TypeError(f"{column.name}: {cell!r} is not a {column.kind}")

    @classmethod
    def of(cls, columns: Sequence[Column], records: Iterable[Mapping[str, Any]]) -> "Table":
        """Return the table with these records; a cell that a record does not name is empty."""
        return cls(tuple(columns), tuple(tuple(one.get(c.name) for c in columns) for one in records))

    def records(self, **equal: Any) -> list[dict[str, Any]]:
        """Return the rows as records, those in which the named columns have these values."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self._rows(equal)]

    def values(self, column: str, **equal: Any) -> list[Any]:
        """Return the cells of a column, of the rows in which the named columns have these values."""
        place = self._places[column]
        return [row[place] for row in self._rows(equal)]

    def _rows(self, equal: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
        wanted = [(self._places[name], value) for name, value in equal.items()]
        return (row for row in self.rows if all(row[place] == value for place, value in wanted))

    @cached_property
    def _places(self) -> dict[str, int]:
        """The place of each column by name."""
        return {column.name: place for place, column in enumerate(self.columns)}


@dataclass(frozen=True)
class Chart:
    """How the table of a probe is drawn; the report draws it for one run or for the mean of many."""

    kind: Literal["lines", "heat"]
    """A line for each arm, or a map of cells for each arm."""
    title: str
    x: str
    """The column along the horizontal axis."""
    value: str
    """The column that is drawn."""
    y: tuple[str, ...] = ()
    """The columns that name the rows of a map."""
    split: str | None = None
    """A column whose values have a chart each."""
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The rows that are drawn: those in which a column has one of these values."""
    x_title: str = ""
    value_title: str = ""
    """The titles of the axes; by default the names of the columns."""
    bounds: tuple[float, float] | None = None
    """The ends of the axis or of the colours; None: those of the values."""
    level: float | None = None
    """A line across the chart, such as zero."""
    smooth: bool = False
    """Whether neighbouring points are averaged where there are many."""
    log: bool = False
    """Whether the horizontal axis is logarithmic."""
    note: str = ""
    """How to read the chart."""
