"""One kind of table, and how it is written: HTML, Markdown, LaTeX, or on a terminal."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import Evaluation

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

MISSING = "–"
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
    """Rows under headings. The first `names` columns are names, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    names: int = 1


def length_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """A column for each named evaluation, a row for each length, with 95% intervals over sequences."""
    lengths = sorted({length for evaluation in evaluations.values() for length in evaluation.lengths})
    start = next(iter(evaluations.values())).training_length
    tested = {name: {count.length: count for count in one.counts} for name, one in evaluations.items()}
    rows = [
        (Cell(str(n)), Cell(f"{n / start:g}x"), *(_counted(counts.get(n)) for counts in tested.values()))
        for n in lengths
    ]
    return Table("all answers right [95% interval]", ("length", "", *evaluations), tuple(rows))


def _counted(count: Count | None) -> Cell:
    if count is None:
        return EMPTY
    low, high = count.interval
    return Cell(f"{count.accuracy:.1%}", f"{low:.1%}, {high:.1%}")


def as_html(table: Table) -> str:
    """A table element; everything in it is text."""

    def wrap(kind: str, place: int, inner: str) -> str:
        name = ' class="name"' if place < table.names else ""
        return f"<{kind}{name}>{inner}</{kind}>"

    def content(cell: Cell) -> str:
        if cell == EMPTY:
            return f'<span class="missing" title="not measured">{MISSING}</span>'
        return escape(cell.text) + (
            f' <span class="interval">[{escape(cell.interval)}]</span>' if cell.interval else ""
        )

    head = "".join(wrap("th", i, escape(text)) for i, text in enumerate(table.head))
    rows = ("".join(wrap("td", i, content(cell)) for i, cell in enumerate(row)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def as_markdown(table: Table) -> str:
    """A table for a README or a pull request."""
    sides = ["---" if i < table.names else "---:" for i in range(len(table.head))]
    body = [
        [in_markdown(cell.text) + f" [{cell.interval}]" * bool(cell.interval) for cell in row] for row in table.rows
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in ([in_markdown(text) for text in table.head], sides, *body)]
    parts = (f"**{in_markdown(table.title)}**", "\n".join(lines), in_markdown(table.note))
    return "\n\n".join(part for part in parts if part) + "\n"


def as_latex(table: Table) -> str:
    """A table for a paper; it takes the package booktabs."""
    sides = "l" * table.names + "r" * (len(table.head) - table.names)
    lines = [" & ".join(map(in_latex, table.head)) + r" \\", r"\midrule"]
    lines += [" & ".join(in_latex(cell.plain) for cell in row) + r" \\" for row in table.rows]
    body = "\n".join(["\\begin{tabular}{" + sides + "}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"])
    caption = r"\caption{" + in_latex(f"{table.title}. {table.note}".strip()) + "}"
    return "\n".join([r"\begin{table}", r"\centering", body, caption, r"\end{table}"]) + "\n"


def for_terminal(table: Table, *, intervals: bool = True) -> "TerminalTable":
    """A table of rich, with intervals or without."""
    from rich.table import Table as TerminalTable
    from rich.text import Text

    shown = TerminalTable(title=Text(table.title), title_justify="left", title_style="")
    for i, text in enumerate(table.head):
        is_name = i < table.names
        widest = min(24, max((len(row[i].text) for row in table.rows), default=0)) if is_name else None
        shown.add_column(Text(text), justify="left" if is_name else "right", overflow="fold", min_width=widest)
    for row in table.rows:
        shown.add_row(*(Text(cell.plain if intervals else cell.text) for cell in row))
    return shown


def in_markdown(text: str) -> str:
    """Text in which nothing is markup."""
    escaped = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def in_latex(text: str) -> str:
    """Text in which nothing is a command."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
