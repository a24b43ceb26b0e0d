"""How checks are declared, chosen and run."""

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn, get_type_hints

from latebloom.components import Component, family_of, members_of_module, required_fields
from latebloom.errors import ConfigError
from latebloom.listing import all_families, first_line
from latebloom.plugins import load
from latebloom.validation import read_settings


class Fails(Exception):  # noqa: N818 (the reason why a property does not hold)
    """A property does not hold."""


class NotApplicable(Exception):  # noqa: N818 (not a mistake)
    """A property cannot be tested, or the component does not declare it."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    component: str
    """Kind and name, such as recurrence lstm."""
    check: str
    """The property."""
    outcome: Literal["holds", "fails", "not applicable"]
    reason: str = ""


Check = Callable[[Any], str | None]
CHECKS: dict[type[Component], list[Check]] = {}
SAMPLES: dict[Any, Any] = {int: 5, float: 0.5, str: "x", bool: True}
"""Values for the settings that a component requires, by type."""


def checks(family: type[Component]) -> Callable[[Check], Check]:
    """Register a function as a check of the members of a family; a decorator."""

    def register(function: Check) -> Check:
        CHECKS.setdefault(family, []).append(function)
        return function

    return register


def require(condition: bool, reason: str) -> None:
    """Raise `Fails` with the reason unless the condition holds."""
    if not condition:
        raise Fails(reason)


def skip(reason: str) -> NoReturn:
    raise NotApplicable(reason)


@checks(Component)
def says_what_it_is(component: Component) -> None:
    """it has a docstring, which `latebloom list` shows"""
    inherited = (type(component).__doc__ or "").startswith(f"{type(component).__name__}(")  # dataclass writes one
    require(bool(first_line(type(component))) and not inherited, "it has none; write one line under the class")


@checks(Component)
def survives_json(component: Component) -> None:
    """its settings are the same after they are written to JSON and read again"""
    if not component.configurable:
        skip("it cannot be in a configuration")
    written = json.dumps(asdict(component))
    again = read_settings(family_of(type(component)), json.loads(written), component.kind())
    require(again == component, f"{written} is read as {again}")


def find_components(name: str) -> list[Component]:
    """Return the components of a name, or those that a module, a package or a Python file defines."""
    named = [family.members[name] for family in all_families() if name in family.members]
    found = named or members_of_module(load(name, "check").__name__)
    if not found:
        raise ConfigError(f"check: {name} defines no component; it has no subclass of a family such as Task")
    return [sample(member) for member in found]


def sample(member: type[Component]) -> Component:
    """Return a member with its default settings, and with example values where there are none."""
    settings: Any = member
    hints = get_type_hints(member)
    values = {name: SAMPLES.get(hints[name], lambda *arguments: False) for name in required_fields(member)}
    try:
        return settings(**values)
    except Exception as error:
        raise ConfigError(f"check: {member.name} cannot be created with {values or 'its defaults'}: {error}") from error


def check_component(component: Component) -> Iterator[Finding]:
    """Yield what each check of the component's family finds."""
    for module in ("attention", "plans", "recurrence", "task"):
        importlib.import_module(f"latebloom.checks.{module}")
    title = f"{component.kind()} {component.name}"
    for one in [*CHECKS[Component], *CHECKS.get(family_of(type(component)), [])]:
        words = " ".join((one.__doc__ or "").split())
        try:
            note = one(component)
        except Fails as error:
            yield Finding(title, words, "fails", str(error))
        except NotApplicable as error:
            yield Finding(title, words, "not applicable", str(error))
        except Exception as error:
            text = " ".join(str(error).split())
            yield Finding(title, words, "fails", f"{type(error).__name__}: {text}")
        else:
            yield Finding(title, words, "holds", note or "")


def check_components(name: str) -> Iterator[Finding]:
    """Yield the findings for every component that a name, a module or a file stands for."""
    for component in find_components(name):
        yield from check_component(component)
