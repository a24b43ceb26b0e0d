"""Settings from plain data, such as JSON. Each mistake becomes one sentence with the full name of its field."""

import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_origin

from latebloom.components import Component, UnknownComponentError, family_of, is_family, required_fields, without_none
from latebloom.errors import ConfigError, unknown
from latebloom.fields import check_value, field_types

S = TypeVar("S")
LONGEST_VALUE = 80
"""The number of characters of a value that an error repeats."""
SAMPLES = {int: "500", float: "0.5"}


def read_settings(kind: type[S], data: Any, path: str = "") -> S:
    """Return settings of a kind from plain data; `path` is where the data come from, for the errors.

    An unknown name of a component is an error of its own, which loads the installed plugins first.
    """
    return _Reader(kind, path).read(kind, data, path)


class _Reader:
    """Reads settings of one kind, whose other sections are named in its errors."""

    def __init__(self, kind: type, path: str) -> None:
        self._kind, self._path = kind, path

    def read(self, annotation: Any, data: Any, path: str) -> Any:
        """Return the value of a field from plain data; its type may be a section, a component, a tuple or a value."""
        kind = without_none(annotation)
        if data is None and kind is not annotation:
            return None
        if is_family(kind):
            return self._component(kind, data, path)
        if is_dataclass(kind):
            return self._section(kind, data, path)
        inner = get_args(kind)
        if (
            get_origin(kind) is tuple
            and isinstance(data, list | tuple)
            and (is_family(inner[0]) or is_dataclass(inner[0]))
        ):
            data = [self.read(inner[0], item, f"{path}.{place}") for place, item in enumerate(data)]
        return check_value(path, data, annotation, _shown)

    def _component(self, family: Any, data: Any, path: str) -> Any:
        """Return the member of a family that the data name, alone or with its settings."""
        if not isinstance(data, str | dict):
            raise ConfigError(f"{path}: {_shown(data)} is not possible{_how_to_choose(path, family)}")
        name, field = (data, path) if isinstance(data, str) else (data.get("name"), f"{path}.name")
        if name is None:
            raise ConfigError(f"{field}: this field is needed and was not given{_how_to_choose(path, family)}")
        if not isinstance(name, str):
            raise unknown(field, name, family.choices())
        member = family.find(name, field)
        if not member.configurable:
            raise ConfigError(
                f"{path}.name: {name!r} cannot be in a configuration; choices: {', '.join(family.choices())}"
            )
        return self._section(member, {"name": name} if isinstance(data, str) else data, path)

    def _section(self, kind: Any, data: Any, path: str) -> Any:
        """Return settings from their fields; all mistakes in the fields are reported together."""
        types = field_types(kind)
        if not isinstance(data, dict):
            how = f"it is a section, set as {path}.FIELD=VALUE" if path else "it must hold settings by name"
            raise ConfigError(f"{path or 'config'}: {_shown(data)} is not possible; {how}: {', '.join(types)}")
        mistakes, values = [], {}
        for name, value in data.items():
            try:
                if name not in types:
                    raise self._unknown_field(kind, name, value, path)
                values[name] = self.read(types[name], value, _join(path, name))
            except UnknownComponentError:
                raise
            except ConfigError as error:
                mistakes.append(str(error))
        for name in required_fields(kind):
            if name not in data:
                field, sample = _join(path, name), SAMPLES.get(types[name])
                how = _how_to_choose(field, types[name]) or (f"; write for example {field}={sample}" if sample else "")
                mistakes.append(f"{field}: this field is needed and was not given{how}")
        if mistakes:
            raise ConfigError("\n".join(dict.fromkeys(mistakes)))
        try:
            return kind(**values)
        except (ValueError, AssertionError) as error:
            # A check within a section names its own field, and a check of the whole run the full path.
            raise ConfigError(_join(path, str(error))) from None

    def _unknown_field(self, kind: Any, name: str, value: Any, path: str) -> ConfigError:
        """Return the error for a field that settings do not have, with what was perhaps meant."""
        types = field_types(kind)
        members = family_of(kind).choices() if issubclass(kind, Component) else {}
        others = [f"name={other}" for other, member in members.items() if name in field_types(member)]
        elsewhere = dict.fromkeys(_fields_named(self._kind, name, self._path))
        if near := get_close_matches(name, types, n=1):
            hint = f"did you mean {near[0]}? "
        elif others:
            hint = f"it belongs to {' and '.join(others)}; "
        else:
            hint = f"did you mean {' or '.join(elsewhere)}? " if elsewhere else ""
        return ConfigError(
            f"{_join(path, name)}: there is no such field (value {_shown(value)}); {hint}choices: {', '.join(types)}"
        )


def _fields_named(kind: Any, name: str, path: str) -> Iterator[str]:
    """Yield the full name of every field of this name, at any depth."""
    for part in kind.choices().values() if is_family(kind) else [kind] if is_dataclass(kind) else []:
        for inner, annotation in field_types(part).items():
            if inner == name:
                yield _join(path, inner)
            yield from _fields_named(without_none(annotation), name, _join(path, inner))


def _how_to_choose(field: str, family: Any) -> str:
    """Return an example of how to set a member of a family; empty if it is none."""
    if not is_family(family):
        return ""
    name, member = next(iter(family.choices().items()))
    types = field_types(member)
    changes = [
        f"{field}.name={name}",
        *(f"{field}.{one}={SAMPLES.get(types[one], '...')}" for one in required_fields(member)),
    ]
    return f"; write for example {' '.join(changes)}; choices: {', '.join(family.choices())}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened if it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
