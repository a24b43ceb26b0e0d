"""Command-line parser whose errors are one sentence, and the arguments that several commands share."""

import argparse
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from latebloom.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ConfigError, suggests the nearest option, and takes positionals anywhere."""

    def __init__(self, **options: Any) -> None:
        self.actions: list[argparse.Action] = []
        """The arguments in the order in which they were added."""
        self.option_hint = self.argument_hint = ""
        """What to write instead of an option, or of an argument, that the command does not have."""
        super().__init__(exit_on_error=False, allow_abbrev=False, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.actions.append(action)
        return action

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Return the parsed arguments; positionals such as FIELD=VALUE may stand before and between the options."""
        try:
            options, unknown = self.parse_known_intermixed_args(words)
        except argparse.ArgumentError as error:
            self.error(f"{error.argument_name}: {error.message}" if error.argument_name else error.message)
        if unknown:
            self.error(self.describe_unknown(unknown))
        return options

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def describe_unknown(self, unknown: list[str]) -> str:
        """Name the first argument that the command does not have, and what was perhaps meant."""
        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
        if option is None:
            return "; ".join(filter(None, [f"unrecognized argument: {unknown[0]}", self.argument_hint]))
        known = [name for action in self.actions for name in action.option_strings]
        near = get_close_matches(option, known, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else self.option_hint
        return "; ".join(filter(None, [f"{self.prog} has no {option}", hint]))


def _converter(kind: Callable[[str], Any], wanted: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not possible; it must be {wanted}") from None

    return convert


def _share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


integer, number = _converter(int, "a whole number"), _converter(float, "a number")
share = _converter(_share, "a share, such as 10% or 0.1")
"""Types of options."""


def folder(text: str) -> Path:
    """Convert the value of an option to a path; refuse an empty one (an unset shell variable), which would be `.`."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no folder")
    return Path(text)


def add_overrides(parser: Parser, example: str) -> None:
    """Add the FIELD=VALUE arguments, which change settings of the configuration."""
    parser.add_argument("overrides", nargs="*", metavar="FIELD=VALUE", help=f"change a setting, such as {example}")
    parser.option_hint = "settings are written FIELD=VALUE, such as training.steps=100"


def add_out(parser: Parser, help: str) -> None:
    """Add the option --out."""
    parser.add_argument("--out", type=folder, metavar="FOLDER", help=help)


def add_imports(parser: Parser) -> None:
    """Add the option --import, which names modules and files with components of the user's own."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE|FILE.py",
        help="import a module or a Python file that defines components; may be given several times",
    )


def add_device(parser: Parser) -> None:
    """Add the option --device."""
    parser.add_argument("--device", metavar="cpu|cuda", help="where to compute (default: CUDA if there is a GPU)")
