"""Show the parts of a model, which of them delayed attention would disable, and how far its recurrence remembers."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_imports


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
    add_imports(parser)


def run(options: Namespace) -> None:
    from rich.console import Console
    from rich.text import Text

    from latebloom.inspect_view import print_inspection
    from latebloom.integrations.load_model import load_model
    from latebloom.probes.inspect import inspect

    console = Console()
    with console.status(Text(f"Inspecting {options.path}")):  # half a minute for a large model
        model, weights = load_model(options.path)
        inspection = inspect(model, horizon=not options.no_horizon)
    print_inspection(console, inspection, weights)
