"""The command line: parse the arguments, run the command, and print a user's mistake as one sentence."""

import re
import shlex
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from tempfile import NamedTemporaryFile
from typing import Any

from latebloom import __version__
from latebloom.arguments import Parser
from latebloom.commands import command_names, describe_command, is_group, load_command
from latebloom.errors import (
    ConfigError,
    InterruptedRun,
    LatebloomError,
    Note,
    catch_write_errors,
    first_line,
    printable,
)

DESCRIPTION = "Delayed attention training: train sequence models on short sequences so that they work on long ones."
EPILOG = """Options of a command: latebloom COMMAND --help. Completion with Tab: eval "$(latebloom completion bash)",
or zsh in place of bash."""


def parse(words: list[str], group: str = "") -> Callable[[], None]:
    """Return the command that the words ask for, ready to be called; raise ConfigError for a mistake in the words.

    With a `group`, the words are those behind its name.
    """
    names, kind = command_names(group), f"{group} command".strip()
    if not words or words[0].startswith("-"):
        parser = _group_parser(group, names)
        _, unknown = parser.parse_known_args(words[:1])  # ends the program after --help and --version
        parser.error(parser.describe_unknown(unknown) if unknown else f"give a command: {', '.join(names)}")
    if words[0] not in names:
        near = get_close_matches(words[0], names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"there is no {kind} {words[0]!r}; {hint}commands: {', '.join(names)}")
    name = f"{group} {words[0]}".strip()
    if is_group(name):
        return parse(words[1:], name)
    parser, run = load_command(name)
    return partial(_run, run, parser.parse(words[1:]))


def _run(run: Callable[[Namespace], None], options: Namespace) -> None:
    """Run a command with the modules and files that --import names."""
    if getattr(options, "imports", []):
        from latebloom.plugins import load

        for name in options.imports:
            load(name)
    run(options)


def _group_parser(group: str, names: list[str]) -> Parser:
    """Return the parser of `latebloom --help` and `latebloom --version`, or of `latebloom GROUP --help`."""
    prog = f"latebloom {group}".strip()
    about = describe_command(group) if group else DESCRIPTION
    parser = Parser(prog=prog, usage=f"{prog} COMMAND ...", description=about, epilog=None if group else EPILOG)
    if not group:
        parser.add_argument("--version", action="version", version=f"latebloom {__version__}", help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in names:
        commands.add_parser(name, help=describe_command(f"{group} {name}".strip()).replace("%", "%%"))
    return parser


_TOO_LARGE = "out of memory|can't allocate memory|Storage size calculation overflowed"
"""What torch says of a tensor that does not fit."""


def _describe_unforeseen(error: BaseException, words: list[str]) -> tuple[str, int]:
    """Return one sentence and the exit status for an unforeseen error; its traceback goes into a file."""
    if isinstance(error, MemoryError) or re.search(_TOO_LARGE, str(error)):
        return (
            "there is not enough memory for this; use smaller settings, such as model.width=32, "
            "training.delayed.batch_size=32 and training.full.batch_size=32"
        ), 2
    return (
        f"this is a mistake in latebloom or in a plugin ({type(error).__name__}: {first_line(error)}); what was saved "
        f"before is complete; the traceback is in {_log(error)}; continue with: latebloom {shlex.join(words)}"
    ), 1


def _log(error: BaseException) -> str:
    """Write the traceback of an error into a file for temporary files, or into the current folder; return its name."""
    text = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
    for folder in (None, "."):
        try:
            with NamedTemporaryFile(prefix="latebloom-", suffix=".log", dir=folder, delete=False) as log:
                log.write(text)
            return log.name
        except OSError:
            continue
    return "no file, because none could be written"


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence and exit status 2, an unforeseen error exit status 1."""
    words = sys.argv[1:] if arguments is None else arguments
    format_others = warnings.formatwarning

    def format_warning(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> str:
        if issubclass(category, Note):
            return f"Note: {printable(str(message))}.\n"
        return format_others(message, category, *rest, **named)

    warnings.formatwarning = format_warning
    try:
        with catch_write_errors("the output of this command"):
            parse(words)()
    except LatebloomError as error:
        message, status = str(error), 130 if isinstance(error, InterruptedRun) else 2
    except BrokenPipeError:
        raise
    except OSError as error:
        place = f"{error.filename} " if error.filename else "a file "
        message = f"{place}cannot be read or written ({error.strerror or error}); what was saved before is complete"
        status = 2
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        message, status = _describe_unforeseen(error, words)
    else:
        return
    finally:
        warnings.formatwarning = format_others
    print(f"latebloom: {printable(message, lines=True)}", file=sys.stderr)
    sys.exit(status)
