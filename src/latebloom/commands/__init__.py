"""Commands of the command line, one module each.

A module `commands/NAME.py` is the command `latebloom NAME`: its docstring is the help text, `add_arguments(parser)`
declares the arguments, and `run(options)` does the work. `run` imports what it needs, so that help and errors do not
wait for torch.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from latebloom.arguments import Parser


def command_names() -> list[str]:
    """Return the names of all commands."""
    return [module.name for module in iter_modules(__path__)]


def load_command(name: str) -> tuple[Parser, Callable[[Any], None]]:
    """Return the parser of a command and the function that runs it with the parsed arguments."""
    module = import_module(f"{__name__}.{name}")
    parser = Parser(prog=f"latebloom {name}", description=module.__doc__)
    module.add_arguments(parser)
    return parser, module.run
