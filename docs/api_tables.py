"""Write docs/reference.md from the signatures and docstrings of the public names; docs/fill.py calls it."""

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from inspect import getdoc, isclass, isfunction, signature
from typing import Any

import latebloom
from latebloom.components import Component
from latebloom.listing import first_line, settings_of
from latebloom.models.settings import Attention, Model

SECTIONS = {
    "Delayed attention in your own model": "DelayedAttention at_step at_fraction at_tokens when_plateau when_beyond "
    "when bypass_attention enable_attention inspect Inspection",
    "Training a run": "train run RunConfig Training Phase Delay TrainedRun load_config recipe",
    "Tasks": "Task Composite ModularSum Recall",
    "Models": "hybrid lstm transformer Model Attention SequenceModel match_parameters",
    "Evaluation": "evaluate Evaluation Evaluating plot",
    "Errors": "LatebloomError",
}
SETTINGS = {"Model": Model, "Attention": Attention}
"""What `hybrid`, `lstm` and `transformer` take by keyword."""
PLACES = re.compile(
    r"latebloom(\.\w+)+\.|(collections\.abc|pathlib|typing|torch\.nn\.modules\.module)\.|(?<=torch\.optim\.)optimizer\."
)
"""The modules of types in signatures, which a reader does not need."""


def reference() -> str:
    """Return every public name with its signature, settings, methods and docstring."""
    named = [name for names in SECTIONS.values() for name in names.split()]
    if differing := {*latebloom.__all__, *SETTINGS} ^ {*named}:
        raise KeyError(f"docs/api_tables.py and latebloom.__all__ differ in {', '.join(sorted(differing))}")
    lines: list[str] = []
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names.split():
            lines += _described(name, SETTINGS.get(name) or getattr(latebloom, name))
    return "\n".join(lines).rstrip()


def _described(name: str, value: Any) -> Iterator[str]:
    yield from (f"### `{name}`", "")
    if not isclass(value) or not (is_dataclass(value) or issubclass(value, Exception)):
        yield from ("```python", _call(name, value), "```", "")
    for paragraph in (getdoc(value) or "").split("\n\n"):
        # Sequences are drawn with aligned columns, and arguments are listed one to a line.
        is_drawn = re.search(r"\S {3,}\S", paragraph)
        is_list = all(re.match(r"\w+: ", line) for line in paragraph.splitlines())
        if is_drawn:
            yield from ("```", paragraph, "```", "")
        elif is_list:
            yield from (*(re.sub(r"^(\w+): ", r"- `\1`: ", line) for line in paragraph.splitlines()), "")
        else:
            yield from (" ".join(paragraph.split()), "")
    if not isclass(value):
        return
    if is_dataclass(value):
        # A nested default is long, and its settings stand elsewhere.
        settings = ((re.sub(r"=(\w+)\(.*", r"=\1(...)", name), text) for name, text in settings_of(value))
        yield from _table("setting and default", settings)
    if not is_dataclass(value) or not issubclass(value, Component):  # its methods are those of its family
        yield from _table("member", _members(value))


def _call(name: str, value: Any) -> str:
    """Return the call of a function or class, one argument to a line if it is long."""
    found = PLACES.sub("", str(signature(value)))
    found = found.removesuffix(" -> None").replace("'", '"')
    return f"{name}{found}" if len(found) < 100 else f"{name}({_broken(found)}"


def _broken(found: str) -> str:
    """Return the arguments of a signature, each on a line."""
    arguments, depth, word = [], 0, ""
    inside, _, result = found[1:].rpartition(")")
    for letter in inside:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            arguments, word = [*arguments, word.strip()], ""
        else:
            word += letter
    return "".join(f"\n    {argument}," for argument in [*arguments, word.strip()]) + f"\n){result}"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties that this package defines, with the first line of their docstrings."""
    bases = [
        base for base in reversed(kind.__mro__) if base.__module__.startswith("latebloom") and base is not Component
    ]
    for name, value in {name: value for base in bases for name, value in vars(base).items()}.items():
        inner = getattr(value, "__func__", value)  # of a class method
        if name.startswith("_") or not first_line(value):
            continue
        if isinstance(value, property | cached_property):
            yield name, first_line(value)
        elif isfunction(inner):
            arguments = [one for one in signature(inner).parameters if one not in ("self", "cls")]
            yield f"{name}({', '.join(arguments)})", first_line(inner)


def _table(head: str, rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    if lines := [f"| `{name}` | {text} |" for name, text in rows]:
        yield from (f"| {head} | |", "|---|---|", *lines, "")
