"""The list of all components with their settings."""

import ast
import importlib
import inspect
import textwrap
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any

from latebloom.components import Component, families, load_entry_points, origin_of

ORDER = ("task", "recurrence", "scores", "positions", "trigger", "study", "recipe", "tracker")


@dataclass(frozen=True)
class Setting:
    """A field of a component."""

    name: str
    default: Any
    """`MISSING` if it must be given."""
    summary: str

    @property
    def assignment(self) -> str:
        """The setting as it is written on the command line: NAME=DEFAULT, or NAME=... if it must be given."""
        if self.default is MISSING:
            return f"{self.name}=..."
        default = getattr(self.default, "name", self.default)
        return f"{self.name}={str(default).lower() if isinstance(default, bool) else default}"


@dataclass(frozen=True)
class Entry:
    """A component as `latebloom list` shows it."""

    name: str
    summary: str
    settings: tuple[Setting, ...]
    configurable: bool
    """Whether a configuration can hold it."""
    origin: str | None
    """The module or file of a plugin; None for the package's own."""


def list_components() -> dict[str, list[Entry]]:
    """Return the members of every family, by the word for the family."""
    for module in ("recipes", "studies.find", "trackers"):  # the other families come with the first
        importlib.import_module(f"latebloom.{module}")
    load_entry_points()
    ordered = sorted(
        families(), key=lambda family: ORDER.index(family.kind()) if family.kind() in ORDER else len(ORDER)
    )
    return {family.kind(): [_entry(member) for member in family.members.values()] for family in ordered}


def _entry(member: type[Component]) -> Entry:
    lines = field_docstrings(member)
    return Entry(
        member.name,
        first_line(member),
        tuple(
            Setting(
                f.name, f.default_factory() if f.default_factory is not MISSING else f.default, lines.get(f.name, "")
            )
            for f in fields(_settings(member))
            if f.name != "name"
        ),
        member.configurable,
        origin_of(member),
    )


def _settings(member: Any) -> Any:
    return member


def first_line(documented: object) -> str:
    """Return the first line of a docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


@cache
def field_docstrings(kind: type) -> dict[str, str]:
    """Return the text below each field of a class, on one line."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):  # defined at a prompt, or by a decorator
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, text in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
