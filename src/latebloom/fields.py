"""Type checks for the fields of settings, made in Python or read from JSON (validation.py).

Settings call `check_fields(self)` first in `__post_init__`. A bound on a number stands in its type:

    keys: Annotated[int, at_least(2)] = 256
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from latebloom.errors import ConfigError, require, unknown


@dataclass(frozen=True)
class Bound:
    """A condition on a number, and the condition in words."""

    holds: Callable[[Any], bool]
    words: str


def at_least(least: int) -> Bound:
    return Bound(lambda value: value >= least, f"{least} or more")


def at_most(most: int) -> Bound:
    return Bound(lambda value: value <= most, f"{most} or less")


FIRST = "first default"


def first_default(value: Any) -> dict[str, Any]:
    """Return the metadata of a field whose default was changed, with what it was at first.

    A hash of settings leaves out the first default, so files of earlier versions keep their hashes, and the new default
    gets another.
    """
    return {FIRST: value}


LARGEST_COUNT = 2**31 - 1
"""The largest number that a results file holds."""
LARGEST_NUMBER = 1e30
"""Larger numbers overflow where they are multiplied."""
Count = Annotated[int, at_least(1), at_most(LARGEST_COUNT)]
Positive = Annotated[float, Bound(lambda value: value > 0, "above 0")]


def check_fields(settings: Any) -> None:
    """Raise if a field does not have the type of its annotation.

    A list where a tuple belongs becomes a tuple, an int where a float belongs a float, as after JSON, and the name of
    a component becomes the component.
    """
    for name, annotation in field_types(type(settings)).items():
        value = getattr(settings, name)
        if isinstance(value, str) and hasattr(annotation, "members"):  # a family of components
            converted = annotation.named(value, name)
        else:
            converted = check_value(name, value, annotation)
        if converted is not value:
            object.__setattr__(settings, name, converted)
        for bound in _bounds(type(settings)).get(name, ()):
            require(bound.holds(converted), name, converted, bound.words)


def check_value(name: str, value: Any, annotation: Any, shown: Callable[[Any], str] = repr) -> Any:
    """Return the value of a field, converted as `check_fields` says; raise if it does not have the type."""
    converted = _convert(value, annotation)
    if _fits(converted, annotation):
        return converted
    if get_origin(annotation) is Literal:
        raise unknown(name, value, get_args(annotation))
    raise ConfigError(f"{name}: {shown(converted)} is not possible; it must be {_describe(annotation)}")


def _convert(value: Any, annotation: Any) -> Any:
    if annotation is float and type(value) is int and abs(value) <= LARGEST_NUMBER:
        return float(value)
    if isinstance(value, list | tuple) and get_origin(annotation) is tuple:
        kinds = get_args(annotation)
        return tuple(_convert(item, kinds[0]) if kinds else item for item in value)
    return value


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass by name, without bounds."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _bounds(kind: type) -> dict[str, tuple[Bound, ...]]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__ for name, hint in hints.items() if get_origin(hint) is Annotated}


def _fits(value: Any, annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if origin is Callable:
        return callable(value)
    if annotation is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(value) <= LARGEST_NUMBER  # false for NaN
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return annotation is Any or isinstance(value, origin or annotation)


def _describe(annotation: Any) -> str:
    finite = f"a finite number of {LARGEST_NUMBER:g} or less"
    known = {int: "a whole number", float: finite, bool: "true or false", str: "a text"}
    if annotation in known:
        return known[annotation]
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_describe(argument) for argument in get_args(annotation))
    if annotation is type(None):
        return "None"
    if get_origin(annotation) is tuple:
        kinds = get_args(annotation)
        count = "" if kinds[-1] is Ellipsis else f" of {len(kinds)}"
        return f"a list{count}, each {_describe(kinds[0])}"
    return f"a {annotation.__name__}" if isinstance(annotation, type) else str(annotation)
