"""All components, and their settings in words."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from typing import Any

from latebloom.components import Component, families, load_entry_points
from latebloom.probes import load_probes

ORDER = ("task", "recurrence", "scores", "positions", "trigger", "study", "recipe", "tracker", "probe")


def all_families() -> list[type[Component]]:
    """Return every family, with the members of this package and of installed plugins, in the order of `ORDER`."""
    from latebloom.studies.find import known_studies

    for module in ("recipes", "trackers"):  # most other families come with the first
        importlib.import_module(f"latebloom.{module}")
    known_studies()
    load_probes()
    load_entry_points()
    places = {kind: place for place, kind in enumerate(ORDER)}
    return sorted(families(), key=lambda family: places.get(family.kind(), len(places)))


def first_line(documented: object) -> str:
    """Return the first line of a docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


def settings_of(member: Any) -> Iterator[tuple[str, str]]:
    """Yield each setting of a component as NAME=DEFAULT (NAME=... if it must be given), and the text below it."""
    kinds: tuple[type, ...] = member.__mro__
    inherited = [_field_docstrings(kind) for kind in reversed(kinds) if is_dataclass(kind)]
    texts = {name: text for one in inherited for name, text in one.items()}
    for field in fields(member):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        default = "..." if default is MISSING else getattr(default, "name", default)
        if field.name != "name":
            shown = str(default).lower() if isinstance(default, bool) else default
            yield f"{field.name}={shown}", texts.get(field.name, "")


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the text below each field that a class itself defines."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):  # defined at a prompt, or by a decorator
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        ast.unparse(field.target): " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
