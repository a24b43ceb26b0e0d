"""List every component by name, with its settings and their defaults."""

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

    from latebloom.delay.policy import HOLDS
    from latebloom.errors import unknown
    from latebloom.listing import first_line, list_components
    from latebloom.models.settings import MODELS

    components = list_components()
    kinds = [*components, "model", "hold"]
    if options.family is not None and options.family not in kinds:
        raise unknown("list", options.family, kinds)
    console = Console(highlight=False)

    def lines() -> Iterator[tuple[int, str, str]]:
        """Yield indentation, name and description of each line."""
        for kind, entries in components.items():
            if options.family in (None, kind):
                yield 0, kind, ""
                for entry in entries:
                    origin = "" if entry.origin is None else f" (from {entry.origin})"
                    in_loop = "" if entry.configurable else " (for your own training loop)"
                    yield 1, entry.name, f"{entry.summary}{in_loop}{origin}"
                    if not options.brief:
                        yield from ((2, setting.assignment, setting.summary) for setting in entry.settings)
        models = {name: f"{first_line(model)} (model.layout={model().layout})" for name, model in MODELS.items()}
        for kind, words in (("model", models), ("hold", HOLDS)):
            if options.family in (None, kind):
                yield 0, kind, ""
                yield from ((1, name, text) for name, text in words.items())

    for level, name, text in lines():
        if level == 0:
            console.print(f"[bold]{name}[/bold]")
            continue
        start = f"{'  ' * level}{name}  "
        hanging = " " * min(2 * level + 2, 6)
        line = textwrap.fill(text, console.width, initial_indent=start, subsequent_indent=hanging)
        console.print(line, markup=False, soft_wrap=True)
