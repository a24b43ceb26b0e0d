"""Plain data into settings, strictly: pydantic does the checking, and every error becomes one sentence."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

from latebloom.choice import Chosen
from latebloom.errors import ConfigError

S = TypeVar("S")
LONGEST_VALUE = 80
"""Characters of a value that an error repeats."""


def read_settings(kind: type[S], data: Any, path: str = "") -> S:
    """Settings of a kind from plain data; `path` is where the data stand, for the errors."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    for part in _kinds_below(kind):
        part.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(data))
    except ValidationError as error:
        sentences = [_sentence(kind, data, path, detail) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(sentences))) from None


def _is_family(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Chosen) and "choices" in kind.__dict__


def _kinds_below(kind: Any) -> Iterator[type]:
    """A kind of settings and all that stand in its fields."""
    if _is_family(kind):
        for member in kind.choices.values():
            yield from _kinds_below(member)
    elif isinstance(kind, type) and is_dataclass(kind):
        yield kind
        for inner in get_type_hints(kind).values():
            yield from _kinds_below(inner)
    else:
        for argument in get_args(kind):
            yield from _kinds_below(argument)


def _sentence(kind: type, data: Any, path: str, detail: Any) -> str:
    """One pydantic error as `field: value is not possible; what is`."""
    names, owner, here_kind, here = _place(kind, data, detail["loc"])
    field = ".".join(filter(None, [path, *names]))
    message, value = detail["msg"], json.dumps(here, default=str)
    value = value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
    match detail["type"]:
        case "value_error":
            # A check within a section names its own field, and a check of the whole run the full path.
            inner = message.removeprefix("Value error, ")
            return f"{field}.{inner}" if field else inner
        case "unexpected_keyword_argument":
            choices = [f.name for f in fields(owner)]
            near = get_close_matches(names[-1], choices, n=1)
            hint = (
                f"did you mean {near[0]}? " if near else _whose(owner, names[-1]) or _elsewhere(kind, path, names[-1])
            )
            return f"{field}: there is no such field (value {value}); {hint}choices: {', '.join(choices)}"
        case "missing" | "missing_argument":
            return f"{field}: this field is needed and was not given{_how_to_choose(field, here_kind, None)}"
        case "union_tag_invalid":
            name = here.get("name") if isinstance(here, dict) else here
            return f"{field}.name: {json.dumps(name)} is not known; choices: {detail['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return f"{field}.name: this field is needed; choices: {', '.join(here_kind.choices)}"
        case _ if _is_family(here_kind) and not isinstance(here, dict):
            return f"{field}: {value} is not possible{_how_to_choose(field, here_kind, here)}"
        case "dataclass_type" if field:
            inner = ", ".join(f.name for f in fields(here_kind))
            return f"{field}: {value} is not possible; it is made of fields, set as {field}.FIELD=VALUE: {inner}"
        case "bool_parsing" | "bool_type":
            return f"{field}: {value} is not possible; it must be true or false"
        case _:
            return f"{field or 'config'}: {value} is not possible; {message[0].lower()}{message[1:]}"


def _whose(member: type, name: str) -> str:
    """The other members of a family that have a field of this name, as a hint."""
    families: list[Any] = [kind for kind in member.__mro__ if _is_family(kind)]
    members = [item for family in families for item in family.choices.items()]
    others = [f"name={other}" for other, kind in members if name in {f.name for f in fields(kind)}]
    return f"it belongs to {' and '.join(others)}; " if others else ""


def _elsewhere(kind: type, path: str, name: str) -> str:
    """The fields of this name in other sections, as a hint."""
    found = dict.fromkeys(".".join(filter(None, [path, *place])) for place in _paths(kind) if place[-1] == name)
    return f"did you mean {' or '.join(found)}? " if found else ""


def _paths(kind: Any) -> Iterator[list[str]]:
    """The paths of all fields in settings of a kind."""
    if _is_family(kind):
        for member in kind.choices.values():
            yield from _paths(member)
    elif isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        for inner in fields(kind):
            yield [inner.name]
            yield from ([inner.name, *rest] for rest in _paths(hints[inner.name]))
    else:
        for argument in get_args(kind):
            yield from _paths(argument)


def _how_to_choose(field: str, kind: Any, wanted: Any) -> str:
    """How a member of a family is named, with the fields that it needs: the one that was meant, or the first."""
    if not _is_family(kind):
        return ""
    name = wanted if str(wanted) in kind.choices else next(iter(kind.choices))
    samples = {int: "500", float: "0.5"}
    hints = get_type_hints(kind.choices[name])
    needed = [f.name for f in fields(kind.choices[name]) if f.default is MISSING and f.default_factory is MISSING]
    words = [f"{field}.name={name}", *(f"{field}.{inner}={samples.get(hints[inner], '...')}" for inner in needed)]
    return f"; write {'' if name == wanted else 'for example '}{' '.join(words)}; choices: {', '.join(kind.choices)}"


def _place(kind: Any, data: Any, location: tuple[Any, ...]) -> tuple[list[str], Any, Any, Any]:
    """Where an error stands: the names a user would write, the settings that hold the field, its kind and its value.

    pydantic puts the name of a chosen member into the location too; a user never wrote that as a field.
    """
    names, owner, here = [], kind, data
    for part in location:
        if _is_family(kind) and part in kind.choices:
            kind = owner = kind.choices[part]
            continue
        names.append(str(part))
        if isinstance(kind, type) and is_dataclass(kind):
            owner = kind
            annotation = get_type_hints(kind).get(part)
            inner = [a for a in get_args(annotation) if isinstance(a, type) and a is not type(None)]
            kind = inner[0] if len(inner) == 1 else annotation  # what `Delay | None` holds is a Delay
        if isinstance(here, dict):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            here = None
    return names, owner, kind, here
