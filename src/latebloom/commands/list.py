"""List the components by kind; of one kind, or of one component, the settings with their defaults too."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from difflib import get_close_matches

from latebloom.arguments import Parser, add_imports


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "what", nargs="?", metavar="KIND|NAME", help="a kind, such as task, or a component by its name, such as lstm"
    )
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
    names = {kind: [*words.get(kind, ()), *(known[kind].members if kind in known else ())] for kind in [*known, *words]}
    what: str | None = options.what
    if what is None or what in names:
        chosen = names if what is None else {what: names[what]}
    else:
        chosen = {kind: [what] for kind, members in names.items() if what in members}
    if what is not None and not chosen:
        near = get_close_matches(what, [name for members in names.values() for name in members], n=1)
        raise unknown("list", what, [*names, *near])
    console = Console(highlight=False)

    def lines(kind: str) -> Iterator[tuple[int, str, str]]:
        """Yield indentation, name and description of each line."""
        for name in chosen[kind]:
            if name in words.get(kind, ()):
                yield 1, name, words[kind][name]
                continue
            member = known[kind].members[name]
            origin = f" (from {origin_of(member)})" if origin_of(member) else ""
            in_loop = "" if member.configurable else " (for your own training loop)"
            yield 1, name, f"{first_line(member)}{in_loop}{origin}"
            if what is not None and not options.brief:
                yield from ((2, assignment, text) for assignment, text in settings_of(member))

    for kind in chosen:
        console.print(f"[bold]{kind}[/bold]")
        for level, name, text in lines(kind):
            start = f"{'  ' * level}{name}  "
            if what is not None:
                hanging = " " * min(2 * level + 2, 6)
                line = textwrap.fill(text, console.width, initial_indent=start, subsequent_indent=hanging)
            elif console.is_terminal:
                line = start + textwrap.shorten(text, max(8, console.width - len(start)), placeholder=" ...")
            else:
                line = start + text
            console.print(line, markup=False, soft_wrap=True)
    if what is None:
        more = "Settings: latebloom list KIND or latebloom list NAME, such as latebloom list lstm"
        console.print(more, soft_wrap=not console.is_terminal)
    for plugin, reason in load_entry_points().items():
        print(f"Note: {plugin} cannot be imported ({reason}).", file=sys.stderr)
