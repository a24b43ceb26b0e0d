"""Settings from plain data. pydantic checks the data, and each of its errors becomes one sentence."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_type_hints

from latebloom.components import Component, families, family_of, is_family, required_fields, without_none
from latebloom.errors import ConfigError

S = TypeVar("S")
LONGEST_VALUE = 80
"""The number of characters of a value that an error repeats."""
SAMPLES = {int: "500", float: "0.5"}


def read_settings(kind: type[S], data: Any, path: str = "") -> S:
    """Return settings of a kind from plain data; `path` is where the data come from, for the errors."""
    from pydantic import ValidationError

    data = _with_members(kind, data, path)
    known = tuple(member for family in families() for member in family.choices().values())
    try:
        return _adapter(kind, known).validate_json(json.dumps(data))
    except ValidationError as error:
        sentences = [_sentence(kind, data, path, detail) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(sentences))) from None


@lru_cache(maxsize=4)
def _adapter(kind: Any, known: tuple[type, ...]) -> Any:
    """Return pydantic's adapter of a kind; `known` is part of the cache key."""
    from pydantic import ConfigDict, TypeAdapter

    parts: list[Any] = [part for _, part in _walk(kind) if is_dataclass(part)]
    for part in parts:
        part.__pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(kind)


def _with_members(kind: Any, data: Any, path: str) -> Any:
    """Return the data with `{"name": ...}` for every component that is given only by its name.

    All names are looked up, which loads the installed plugins if a name is unknown.
    """
    kind = without_none(kind)
    if is_family(kind):
        name = data.get("name") if isinstance(data, dict) else data
        if not isinstance(name, str):
            return data
        member = kind.find(name, f"{path}.name" if isinstance(data, dict) else path)
        if not member.configurable:
            raise ConfigError(
                f"{path}.name: {name!r} cannot be in a configuration; choices: {', '.join(kind.choices())}"
            )
        if isinstance(data, str):
            return data if required_fields(member) else {"name": name}
        kind = member
    if not is_dataclass(kind) or not isinstance(data, dict):
        return data
    hints = get_type_hints(kind)
    return {
        key: _with_members(hints[key], value, ".".join(filter(None, [path, key]))) if key in hints else value
        for key, value in data.items()
    }


def _walk(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the type of a kind of settings and of all fields in it, at any depth."""
    if is_family(kind):
        for member in kind.choices().values():
            yield from _walk(member, path)
        return
    yield path, kind
    if isinstance(kind, type) and is_dataclass(kind):
        for name, inner in get_type_hints(kind).items():
            if name in kind.__dataclass_fields__:
                yield from _walk(inner, (*path, name))
    else:
        for argument in get_args(kind):
            yield from _walk(argument, path)


def _sentence(kind: type, data: Any, path: str, detail: Any) -> str:
    """Return a pydantic error as `field: value is not possible; what is`."""
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
            near = [f"did you mean {name}? " for name in get_close_matches(names[-1], choices, n=1)]
            hint = near[0] if near else _members_with(owner, names[-1]) or _sections_with(kind, path, names[-1])
            return f"{field}: there is no such field (value {value}); {hint}choices: {', '.join(choices)}"
        case "missing" | "missing_argument":
            example = f"; write for example {field}={SAMPLES[here_kind]}" if here_kind in SAMPLES else ""
            how = _how_to_choose(field, here_kind, None) or example
            return f"{field}: this field is needed and was not given{how}"
        case "union_tag_not_found":
            return f"{field}.name: this field is needed and was not given{_how_to_choose(field, here_kind, None)}"
        case _ if is_family(here_kind) and not isinstance(here, dict):
            return f"{field}: {value} is not possible{_how_to_choose(field, here_kind, here)}"
        case "dataclass_type" if field:
            inner = ", ".join(f.name for f in fields(here_kind))
            return f"{field}: {value} is not possible; it is a section, set as {field}.FIELD=VALUE: {inner}"
        case "bool_parsing" | "bool_type":
            return f"{field}: {value} is not possible; it must be true or false"
        case _:
            return f"{field or 'config'}: {value} is not possible; {message[0].lower()}{message[1:]}"


def _members_with(member: type, name: str) -> str:
    """Return a hint with the other members of the family that have a field of this name."""
    members: dict[str, Any] = family_of(member).choices() if issubclass(member, Component) else {}
    others = [f"name={other}" for other, kind in members.items() if name in kind.__dataclass_fields__]
    return f"it belongs to {' and '.join(others)}; " if others else ""


def _sections_with(kind: type, path: str, name: str) -> str:
    """Return a hint with the fields of this name in other sections."""
    found = dict.fromkeys(".".join(filter(None, [path, *place])) for place, _ in _walk(kind) if place[-1:] == (name,))
    return f"did you mean {' or '.join(found)}? " if found else ""


def _how_to_choose(field: str, kind: Any, wanted: Any) -> str:
    """Return an example of how to set a member of a family: the given one, or the first."""
    if not is_family(kind):
        return ""
    choices = kind.choices()
    name = wanted if str(wanted) in choices else next(iter(choices))
    hints = get_type_hints(choices[name])
    needed = required_fields(choices[name])
    changes = [f"{field}.name={name}", *(f"{field}.{inner}={SAMPLES.get(hints[inner], '...')}" for inner in needed)]
    return f"; write {'' if name == wanted else 'for example '}{' '.join(changes)}; choices: {', '.join(choices)}"


def _place(kind: Any, data: Any, location: tuple[Any, ...]) -> tuple[list[str], Any, Any, Any]:
    """Return the place of an error: the names a user would write, the settings of the field, its kind and its value.

    pydantic puts the name of a member into the location too, which a user does not write.
    """
    names, owner, here = [], kind, data
    for part in location:
        if is_family(kind) and part in kind.choices():
            kind = owner = kind.choices()[part]
            continue
        names.append(str(part))
        if isinstance(kind, type) and is_dataclass(kind):
            owner = kind
            kind = without_none(get_type_hints(kind).get(part))
        if isinstance(here, dict):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            here = None
    return names, owner, kind, here
