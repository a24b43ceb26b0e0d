"""Commands of the command line, one module each.

A module `commands/NAME.py` is the command `latebloom NAME`: its docstring is the help text, `add_arguments(parser)`
declares the arguments, and `run(options)` does the work. `run` imports what it needs, so that help and errors do not
wait for torch. A package `commands/GROUP` is a group of commands: its module NAME is `latebloom GROUP NAME`.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from latebloom.arguments import Parser


def command_names(group: str = "") -> list[str]:
    """Return the names of all commands and groups, or of the commands of a group."""
    return [module.name for module in iter_modules(_import(group).__path__ if group else __path__)]


def is_group(name: str) -> bool:
    """Return whether a name is that of a group."""
    return hasattr(_import(name), "__path__")


def describe_command(name: str) -> str:
    """Return the help text of a command or a group."""
    return (_import(name).__doc__ or "").strip()


def load_command(name: str) -> tuple[Parser, Callable[[Any], None]]:
    """Return the parser of a command, such as `train` or `lm train`, and the function that runs it."""
    module = _import(name)
    parser = Parser(prog=f"latebloom {name}", description=module.__doc__)
    module.add_arguments(parser)
    return parser, module.run


def _import(name: str) -> Any:
    return import_module(f"{__name__}.{name.replace(' ', '.')}")
