"""List every component by name, with its settings and their defaults."""

import sys
from argparse import Namespace
from collections.abc import Iterator

from latebloom.arguments import Parser, add_imports


def add_arguments(parser: Parser) -> None:
    parser.add_argument("family", nargs="?", metavar="FAMILY", help="show one family only, such as task or recurrence")
    parser.add_argument("--brief", action="store_true", help="leave out the settings")
    add_imports(parser)


def run(options: Namespace) -> None:
    import textwrap

    from rich.console import Console

    from latebloom.components import load_entry_points, origin_of
    from latebloom.delay.policy import HOLDS
    from latebloom.errors import unknown
    from latebloom.listing import all_families, first_line, settings_of
    from latebloom.models.settings import MODELS

    known = {family.kind(): family for family in all_families()}
    models = {name: f"{first_line(model)} (model.layout={model().layout})" for name, model in MODELS.items()}
    words = {"model": models, "hold": HOLDS}
    kinds = [*known, *words]
    if options.family is not None and options.family not in kinds:
        raise unknown("list", options.family, kinds)
    console = Console(highlight=False)

    def lines(kind: str) -> Iterator[tuple[int, str, str]]:
        """Yield indentation, name and description of each line."""
        yield from ((1, name, text) for name, text in words.get(kind, {}).items())
        for member in known[kind].members.values() if kind in known else ():
            origin = f" (from {origin_of(member)})" if origin_of(member) else ""
            in_loop = "" if member.configurable else " (for your own training loop)"
            yield 1, member.name, f"{first_line(member)}{in_loop}{origin}"
            if not options.brief:
                yield from ((2, assignment, text) for assignment, text in settings_of(member))

    for kind in kinds if options.family is None else [options.family]:
        console.print(f"[bold]{kind}[/bold]")
        for level, name, text in lines(kind):
            start = f"{'  ' * level}{name}  "
            hanging = " " * min(2 * level + 2, 6)
            line = textwrap.fill(text, console.width, initial_indent=start, subsequent_indent=hanging)
            console.print(line, markup=False, soft_wrap=True)
    for plugin, reason in load_entry_points().items():
        print(f"Note: {plugin} cannot be imported ({reason}).", file=sys.stderr)
