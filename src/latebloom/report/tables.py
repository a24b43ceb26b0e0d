"""One table type and its renderers: HTML, Markdown, LaTeX and terminal."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table(title, tuple(head), cells, names=len(head) if names is None else names)


def as_html(table: Table) -> str:
    """Return a table element; all names and values are escaped."""

    def wrap(kind: str, place: int, inner: str) -> str:
        name = ' class="name"' if place < table.names else ""
        return f"<{kind}{name}>{inner}</{kind}>"

    def content(cell: Cell) -> str:
        if cell == EMPTY:
            return f'<span class="missing" title="not measured">{MISSING}</span>'
        interval = f' <span class="interval">[{escape(cell.interval)}]</span>' if cell.interval else ""
        return escape(cell.text) + interval

    head = "".join(wrap("th", i, escape(text)) for i, text in enumerate(table.head))
    rows = ("".join(wrap("td", i, content(cell)) for i, cell in enumerate(row)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def as_markdown(table: Table) -> str:
    """Return the table for a README or a pull request."""
    sides = ["---" if i < table.names else "---:" for i in range(len(table.head))]
    body = [
        [in_markdown(cell.text) + f" [{cell.interval}]" * bool(cell.interval) for cell in row] for row in table.rows
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in ([in_markdown(text) for text in table.head], sides, *body)]
    parts = (f"**{in_markdown(table.title)}**", "\n".join(lines), in_markdown(table.note))
    return "\n\n".join(part for part in parts if part) + "\n"


def as_latex(table: Table) -> str:
    """Return the table for a paper; it needs the LaTeX package booktabs."""
    sides = "l" * table.names + "r" * (len(table.head) - table.names)
    lines = [" & ".join(map(in_latex, table.head)) + r" \\", r"\midrule"]
    lines += [" & ".join(in_latex(cell.plain) for cell in row) + r" \\" for row in table.rows]
    body = "\n".join(["\\begin{tabular}{" + sides + "}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"])
    caption = r"\caption{" + in_latex(f"{table.title}. {table.note}".strip()) + "}"
    return "\n".join([r"\begin{table}", r"\centering", body, caption, r"\end{table}"]) + "\n"


def print_table(console: "Console", table: Table, styles: Sequence[str] = ()) -> None:
    """Print a table in the widest layout that fits: with intervals, without them, or each row as a block.

    No cell is ever cut. Where the output is not a terminal it has no edge, so the table is printed whole.
    """
    if not console.is_terminal:
        from rich.console import Console

        console = Console(file=console.file, width=1_000)
    for intervals in (True, False):
        grid = _grid(table, intervals, styles)
        if console.measure(grid, options=console.options.update(width=1_000)).minimum <= console.width:
            console.print(grid)
            if not intervals and any(cell.interval for row in table.rows for cell in row):
                console.print("This terminal is too narrow for the intervals.", style="dim")
            return
    console.print(_stacked(table, console.width), highlight=False, markup=False)


def _grid(table: Table, intervals: bool, styles: Sequence[str]) -> "RichTable":
    """Return the table as rich draws it. Only the column with the longest texts may wrap, at words."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(
        title=Text(table.title), title_justify="left", title_style="", box=SIMPLE_HEAD if any(table.head) else None,
        show_header=any(table.head), pad_edge=False, show_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    columns = [[row[i].plain if intervals else row[i].text for row in table.rows] for i in range(len(table.head))]
    widths = [max(map(len, column), default=0) for column in columns]
    longest = max(range(table.names), key=lambda i: widths[i])
    for i, (heading, column) in enumerate(zip(table.head, columns, strict=True)):
        may_wrap = i == longest and widths[i] > LONGEST_NAME
        width = max(len(word) for text in column for word in text.split() or [""]) if may_wrap else widths[i]
        width = max(width, *map(len, heading.split()), LONGEST_NAME if may_wrap else 1)
        grid.add_column(
            Text(fill(heading, width, break_on_hyphens=False)),
            justify="left" if i < table.names else "right",
            no_wrap=not may_wrap,
            min_width=width,
        )
    for i, row in enumerate(table.rows):
        texts = (Text(cell.plain if intervals else cell.text) for cell in row)
        grid.add_row(*texts, style=styles[i] if styles else None)
    return grid


def _stacked(table: Table, width: int) -> str:
    """Return each row as a block of lines `heading: value` under its first cell, wrapped at words where possible."""
    blocks = [fill(table.title, width)] if table.title else []
    for first, *others in table.rows:
        lines = [fill(first.plain, width)]
        for heading, cell in zip(table.head[1:], others, strict=True):
            text = f"{heading}: {cell.plain}" if heading else cell.plain
            lines.append(fill(text, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False))
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def in_markdown(text: str) -> str:
    """Return text in which nothing is Markdown."""
    escaped = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def in_latex(text: str) -> str:
    """Return text in which nothing is a LaTeX command."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
