"""One table type and its renderers: HTML, Markdown, LaTeX and terminal."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

MISSING = "–"
LONGEST_NAME = 24
"""The column with the longest texts may be wrapped in a terminal, if they are longer than this."""
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", MISSING: "--",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A value, with its interval if it has one."""

    text: str
    interval: str = ""

    @property
    def plain(self) -> str:
        return f"{self.text} [{self.interval}]" if self.interval else self.text


EMPTY = Cell(MISSING)


@dataclass(frozen=True)
class Table:
    """Rows under headings. The first `names` columns are left-aligned text, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    names: int = 1


def text_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], names: int | None = None) -> Table:
    """Return a table of strings without intervals; all columns are text unless `names` says how many are."""
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table(title, tuple(head), cells, names=len(head) if names is None else names)


def as_html(table: Table) -> str:
    """Return a table element; all names and values are escaped."""

    def row(kind: str, contents: Iterable[str]) -> str:
        sides = [' class="name"'] * table.names + [""] * (len(table.head) - table.names)
        cells = (f"<{kind}{side}>{text}</{kind}>" for side, text in zip(sides, contents, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    def content(cell: Cell) -> str:
        if cell == EMPTY:
            return f'<span class="missing" title="not measured">{MISSING}</span>'
        return escape(cell.text) + f' <span class="interval">[{escape(cell.interval)}]</span>' * bool(cell.interval)

    head, body = row("th", map(escape, table.head)), "".join(row("td", map(content, cells)) for cells in table.rows)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def as_markdown(table: Table) -> str:
    """Return the table for a README or a pull request."""
    sides = ["---" if i < table.names else "---:" for i in range(len(table.head))]
    body = [[Cell(in_markdown(cell.text), cell.interval).plain for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (map(in_markdown, table.head), sides, *body)]
    parts = (f"**{in_markdown(table.title)}**", "\n".join(lines), in_markdown(table.note))
    return "\n\n".join(part for part in parts if part) + "\n"


def as_latex(table: Table) -> str:
    """Return the table for a paper; it needs the LaTeX package booktabs."""
    sides = "l" * table.names + "r" * (len(table.head) - table.names)
    head, *body = (
        " & ".join(map(in_latex, texts)) + r" \\"
        for texts in (table.head, *([cell.plain for cell in row] for row in table.rows))
    )
    caption = r"\caption{" + in_latex(f"{table.title}. {table.note}".strip()) + "}"
    lines = [r"\begin{table}", r"\centering", r"\begin{tabular}{" + sides + "}", r"\toprule", head, r"\midrule"]
    return "\n".join([*lines, *body, r"\bottomrule", r"\end{tabular}", caption, r"\end{table}"]) + "\n"


def print_table(console: "Console", table: Table, styles: Sequence[str] = ()) -> None:
    """Print a table in the widest layout that fits: with intervals, without them, or each row as a block.

    No cell is ever cut. Where the output is not a terminal it has no edge, so the table is printed whole.
    """
    if not console.is_terminal:
        from rich.console import Console

        console = Console(file=console.file, width=1_000)
    without_intervals = replace(table, rows=tuple(tuple(Cell(cell.text) for cell in row) for row in table.rows))
    for shown in (table, without_intervals):
        grid = _grid(shown, styles)
        if console.measure(grid, options=console.options.update(width=1_000)).minimum <= console.width:
            console.print(grid)
            if shown != table:
                console.print("This terminal is too narrow for the intervals.", style="dim")
            return
    console.print(_stacked(table, console.width), highlight=False, markup=False)


def _grid(table: Table, styles: Sequence[str]) -> "RichTable":
    """Return the table as rich draws it. Only the column with the longest texts may wrap, at words."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(
        title=Text(table.title), title_justify="left", title_style="", box=SIMPLE_HEAD if any(table.head) else None,
        show_header=any(table.head), pad_edge=False, show_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    columns = [[row[i].plain for row in table.rows] for i in range(len(table.head))]
    widths = [max(map(len, column), default=0) for column in columns]
    longest = max(range(table.names), key=lambda i: widths[i])
    for i, (heading, column) in enumerate(zip(table.head, columns, strict=True)):
        may_wrap = i == longest and widths[i] > LONGEST_NAME
        width = max(len(word) for text in column for word in text.split() or [""]) if may_wrap else widths[i]
        width = max(width, *map(len, heading.split()), LONGEST_NAME if may_wrap else 1)
        title, side = Text(fill(heading, width, break_on_hyphens=False)), "left" if i < table.names else "right"
        grid.add_column(title, justify=side, no_wrap=not may_wrap, min_width=width)
    for i, row in enumerate(table.rows):
        grid.add_row(*(Text(cell.plain) for cell in row), style=styles[i] if styles else None)
    return grid


def _stacked(table: Table, width: int) -> str:
    """Return each row as a block of lines `heading: value` under its first cell, wrapped at words where possible."""
    lines = [fill(table.title, width)] if table.title else []
    for first, *others in table.rows:
        lines.append(fill(first.plain, width))
        for heading, cell in zip(table.head[1:], others, strict=True):
            text = f"{heading}: {cell.plain}" if heading else cell.plain
            lines.append(fill(text, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False))
    return "\n".join(lines)


def in_markdown(text: str) -> str:
    """Return text in which nothing is Markdown."""
    return escape(re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", " ".join(text.split())), quote=False)


def in_latex(text: str) -> str:
    """Return text in which nothing is a LaTeX command."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def join_words(words: Sequence[str]) -> str:
    """Join words: a, b and c."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
