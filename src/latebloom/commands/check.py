"""Test components against their contracts, one line per property."""

import sys
from argparse import Namespace
from itertools import chain

from latebloom.arguments import Parser, add_imports


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="MODULE|FILE.py|NAME",
        help="modules and Python files with components, or components by their names",
    )
    add_imports(parser)


def run(options: Namespace) -> None:
    from rich.console import Console
    from rich.text import Text

    from latebloom.checks import check_components

    console = Console(highlight=False)
    colors = {"holds": "green", "fails": "red", "not applicable": "dim"}
    counts = dict.fromkeys(colors, 0)
    component = ""
    for finding in chain.from_iterable(map(check_components, options.targets)):
        if finding.component != component:
            component = finding.component
            console.print(Text(component, style="bold"))
        counts[finding.outcome] += 1
        reason = f": {finding.reason}" if finding.reason else ""
        text = Text.assemble("  ", (f"{finding.outcome:14}", colors[finding.outcome]), f"  {finding.check}{reason}")
        console.print(text, soft_wrap=True)
    console.print(", ".join(f"{outcome}: {count}" for outcome, count in counts.items()))
    if counts["fails"]:
        sys.exit(1)
