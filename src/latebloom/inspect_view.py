"""`latebloom inspect`: the parts of a model as a table, and what follows from them."""

from rich.console import Console

from latebloom.probes.inspect import Inspection, Row
from latebloom.report.tables import print_table, text_table
from latebloom.report.terminal import say

COLORS = {"attention": "magenta", "recurrence": "cyan", "other": "dim"}


def print_inspection(console: Console, inspection: Inspection, weights: str) -> None:
    """Print the parts, the totals, what would be disabled, and the memory horizon; `weights` is their origin."""
    groups = inspection.grouped()
    rows = [(row.path or "(the model itself)", row.kind, _parameters(row), _description(row)) for row in groups]
    table = text_table(inspection.model, ("part", "kind", "parameters", "what it is"), rows)
    print_table(console, table, [COLORS[row.kind] for row in groups])
    for sentence in (f"Weights: {weights}.", *inspection.sentences()):
        say(console, sentence)


def _parameters(row: Row) -> str:
    return f"{row.count} x {row.parameters // row.count:,}" if row.count > 1 else f"{row.parameters:,}"


def _description(row: Row) -> str:
    if row.held:
        return f"{row.class_name}, delayed: {row.note}"
    if row.note.startswith(row.class_name):
        return row.note
    return ", ".join(filter(None, (row.class_name, row.note)))
