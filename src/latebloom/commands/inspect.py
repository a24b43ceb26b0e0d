"""Show the parts of a model, which of them delayed attention would disable, and how far its recurrence remembers."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from latebloom.arguments import Parser, add_imports

if TYPE_CHECKING:
    from rich.console import Console

    from latebloom.probes.inspect import Inspection

COLORS = {"attention": "magenta", "recurrence": "cyan", "other": "dim"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a Transformers checkpoint folder or config.json, or the folder, checkpoint or model of a run",
    )
    parser.add_argument(
        "--no-horizon",
        action="store_true",
        help="do not measure how far back a token matters when attention is disabled",
    )
    parser.add_argument("--yes", action="store_true", help="build a model of any size, whatever memory it takes")
    add_imports(parser)


def run(options: Namespace) -> None:
    from rich.console import Console
    from rich.text import Text

    from latebloom.integrations.load_model import load_model
    from latebloom.probes.inspect import inspect

    console = Console()
    with console.status(Text(f"Inspecting {options.path}")):  # half a minute for a large model
        model, weights = load_model(options.path, allow_large=options.yes)
        inspection = inspect(model, horizon=not options.no_horizon)
    print_inspection(console, inspection, weights)


def print_inspection(console: "Console", inspection: "Inspection", weights: str) -> None:
    """Print the parts, the totals, what would be disabled, and the memory horizon; `weights` is their origin."""
    from latebloom.report.tables import print_table, text_table
    from latebloom.report.terminal import say

    groups, rows = inspection.grouped(), []
    for row in groups:
        what = ", ".join(filter(None, (row.class_name, "delayed: " * row.held + row.note)))
        size = f"{row.count} x {row.parameters // row.count:,}" if row.count > 1 else f"{row.parameters:,}"
        is_named = not row.held and row.note.startswith(row.class_name)
        rows.append((row.path or "(the model itself)", row.kind, size, row.note if is_named else what))
    table = text_table(inspection.model, ("part", "kind", "parameters", "what it is"), rows)
    print_table(console, table, [COLORS[row.kind] for row in groups])
    for sentence in (f"Weights: {weights}.", *inspection.sentences()):
        say(console, sentence)
