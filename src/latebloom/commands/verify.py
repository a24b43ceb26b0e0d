"""Check that runs, studies, corpora and results files are unchanged, and repair runs from their checkpoints."""

import sys
from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_imports


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="the folder of a run, study or corpus, or a results file"
    )
    parser.add_argument(
        "--repair", action="store_true", help="rebuild files from the last checkpoint, and remove damaged checkpoints"
    )
    add_imports(parser)


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.engine.folder import is_language_run
    from latebloom.errors import ConfigError, LatebloomError, printable
    from latebloom.report.terminal import say
    from latebloom.results.verify import repair, verify

    if not options.path.exists():
        raise ConfigError(
            f"PATH: {options.path} does not exist; give the folder of a run or of a study, or a results file"
        )
    if is_language_run(options.path):
        from latebloom.lm.verify import verify

        if options.repair:
            raise ConfigError(
                f"--repair: {options.path} is of a language model; the command that made it restores what it can"
            )
    console = Console()
    found = list(verify(options.path))
    if options.repair:
        for one in found:
            if one.problems:
                try:
                    done = repair(one.path)
                except LatebloomError as error:  # the others can be repaired nevertheless
                    done = str(error)
                way_out = (
                    "remove it and train the run again" if one.path.is_dir() else "repeat the command that wrote it"
                )
                done = done or f"{one.path} cannot be repaired; {way_out}"
                say(console, printable(f"{done}."))
        found = list(verify(options.path))
    for one in found:
        for text in (*one.problems, *one.unreadable, *([f"note: {one.note}"] if one.note else [])):
            say(console, printable(f"{one.path}: {text}"))
    damaged, sound = sum(bool(one.problems) for one in found), sum(one.is_sound for one in found)
    if damaged and not options.repair and not is_language_run(options.path):
        say(console, printable(f"Repair what can be repaired with: latebloom verify {options.path} --repair"))
    unread = len(found) - sound - damaged
    rest = f", {unread} could not be read" if unread else ""
    say(console, f"{len(found)} checked, {sound} sound, {damaged} damaged{rest}.")
    if sound < len(found):
        sys.exit(1)
