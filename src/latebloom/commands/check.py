"""Test components against their contracts, one line per property."""

import sys
from argparse import Namespace

from latebloom.arguments import Parser, add_imports


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "target", metavar="MODULE|FILE.py|NAME", help="a module or a Python file with components, or one by its name"
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
    for finding in check_components(options.target):
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
