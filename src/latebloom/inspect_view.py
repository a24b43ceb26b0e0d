"""An inspection in a terminal: a table of the parts, and what follows from them."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latebloom.probes.inspect import Inspection, Row
from latebloom.report.terminal import say

COLORS = {"attention": "magenta", "recurrence": "cyan", "other": "dim"}
WIDE = 200


def print_inspection(console: Console, inspection: Inspection, weights: str) -> None:
    """The table, the totals, what would be held back, and the memory horizon; `weights` says where they are from."""
    if not console.is_terminal:
        console.width = WIDE  # a log has no edge to wrap at, and paths are searched for in it
    console.print(part_table(inspection))
    say(console, f"Weights: {weights}.")
    for sentence in inspection.sentences():
        say(console, sentence)


def part_table(inspection: Inspection) -> Table:
    """A row for each part, equal parts of different layers as one."""
    table = Table(title=Text(inspection.model), title_justify="left", title_style="", box=None, pad_edge=False)
    table.add_column("part", overflow="fold", min_width=30)
    table.add_column("kind", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for row in inspection.grouped():
        count = f"{row.count} x {row.parameters // row.count:,}" if row.count > 1 else f"{row.parameters:,}"
        cells = [row.path or "(the model itself)", row.kind, count, _words(row)]
        table.add_row(*(Text(cell) for cell in cells), style=COLORS[row.kind])
    return table


def _words(row: Row) -> str:
    if row.held:
        return f"{row.class_name}, held back: {row.note}"
    if row.note.startswith(row.class_name):
        return row.note
    return ", ".join(filter(None, (row.class_name, row.note)))
