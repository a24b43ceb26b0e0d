"""Families of components chosen by name: recurrences, scores, positions, tasks, triggers, studies, trackers, probes.

A family is a class directly below `Component`. A member is a frozen, keyword-only dataclass below a family that has a
`name` with a default and its own settings. It registers by being defined, in this package or in any other module:

    @dataclass(frozen=True, kw_only=True)
    class Elman(Recurrence):
        '''An Elman network.'''

        name: Literal["elman"] = "elman"
        bias: bool = True
        '''Whether the layer has a bias.'''

        def build(self, width: int) -> RecurrentLayer: ...

Where a field of a family's type is given as a string, it means the member of that name with its defaults.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from latebloom.errors import ConfigError, unknown
from latebloom.fields import check_fields

ENTRY_POINTS = "latebloom"
"""The group of entry points that plugins register their modules under."""
PACKAGE = __name__.partition(".")[0]
F = TypeVar("F", bound=Callable[..., Any])


class UnknownComponentError(ConfigError):
    """A name that no component of a family has."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """Base of all families. See the module's docstring for how to add a family or a member."""

    members: ClassVar[dict[str, type[Self]]]
    """The members of a family by name."""
    configurable: ClassVar[bool] = True
    """Whether a configuration can hold the member; one that needs an object of Python's, such as a function, cannot."""
    _source: ClassVar[tuple[str, str, str | None]]
    """Where the class is defined."""
    name: str

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        _require_complete(cls, cls.kind())
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Component in cls.__bases__:
            cls.members = {}
        elif isinstance(name := cls.__dict__.get("name"), str):
            cls._source = cls.__qualname__, cls.__module__, getattr(sys.modules.get(cls.__module__), "__file__", None)
            known = cls.members.get(name)
            if known is not None and known._source != cls._source:
                raise ConfigError(
                    f"{family_of(cls).kind()}: {name!r} is defined twice, as {known.__qualname__} in {_place(known)} "
                    f"and as {cls.__qualname__} in {_place(cls)}; rename one"
                )
            cls.members[name] = cls

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def kind(cls) -> str:
        """Return the word for a member of the family, such as recurrence."""
        return family_of(cls).__name__.lower()

    @classmethod
    def choices(cls) -> dict[str, type[Self]]:
        """Return the members that a configuration can hold, by name."""
        return {name: member for name, member in cls.members.items() if member.configurable}

    @classmethod
    def find(cls, name: str, field: str | None = None) -> type[Self]:
        """Return the member of a name; load the plugins that are installed if the name is not known yet."""
        broken = {} if name in cls.members else load_entry_points()
        if name not in cls.members:
            notes = [f"{plugin} cannot be imported ({reason})" for plugin, reason in broken.items()]
            raise UnknownComponentError("; ".join([str(unknown(field or cls.kind(), name, cls.choices())), *notes]))
        member = cls.members[name]
        _require_complete(member, field or cls.kind())
        return member

    @classmethod
    def named(cls, name: str, field: str | None = None) -> Self:
        """Return the member of a name with its default settings."""
        member = cls.find(name, field)
        if missing := required_fields(member):
            raise ConfigError(f"{field or cls.kind()}: {name} needs {', '.join(missing)}")
        return member(name=name)


def _require_complete(member: type[Component], field: str, *, own_name: bool = False) -> None:
    """Raise unless a class is a dataclass whose name has a default, which it may inherit unless `own_name`."""
    own: dict[str, Any] = dict(vars(member))
    settings, name = own.get("__dataclass_fields__"), own.get("name")
    has_name = settings is not None and settings["name"].default == getattr(member, "name", None)
    if has_name and (name is not None or not own_name):
        return
    lacking = [] if settings else ["@dataclass(frozen=True, kw_only=True) above it"]
    if name is None or "name" not in inspect.get_annotations(member):
        name = name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", member.__name__).lower()
        lacking.append(f'name: Literal["{name}"] = "{name}" in it')
    what = f"{member.__qualname__} in {_place(member)}"
    raise ConfigError(f"{field}: {what} is no dataclass with a name; write {' and '.join(lacking)}")


def check_definitions(module: str) -> None:
    """Raise if a class of a module should be a component and lacks something; abstract and base classes may."""
    for kind in vars(sys.modules[module]).values():
        is_member = isinstance(kind, type) and issubclass(kind, Component) and kind.__module__ == module
        if is_member and not (is_family(kind) or inspect.isabstract(kind) or kind.__subclasses__()):
            _require_complete(kind, kind.kind(), own_name=True)


def families() -> list[type[Component]]:
    """Return every family that is defined."""
    return Component.__subclasses__()


def is_family(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Component) and "members" in vars(kind)


def family_of(member: type[Component]) -> type[Component]:
    """Return the family that a member, or a family itself, belongs to."""
    return next(kind for kind in member.__mro__ if is_family(kind))


def without_none(annotation: Any) -> Any:
    """Return the type of a field: `Task` for `Task` and for `Task | None`."""
    is_union = get_origin(annotation) in (Union, UnionType)
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] if is_union else []
    return kinds[0] if len(kinds) == 1 else annotation


def required_fields(member: type) -> list[str]:
    """Return the names of the settings that have no default."""
    settings: Any = member
    return [f.name for f in fields(settings) if f.default is MISSING and f.default_factory is MISSING]


def components_in(settings: Any) -> Iterator[Component]:
    """Yield every component that settings hold, at any depth."""
    if isinstance(settings, Component):
        yield settings
    if is_dataclass(settings) and not isinstance(settings, type):
        for field in fields(settings):
            yield from components_in(getattr(settings, field.name))
    elif isinstance(settings, list | tuple):
        for item in settings:
            yield from components_in(item)


def members_of_module(module: str) -> list[type[Component]]:
    """Return the components that a module or a package defines."""
    members = [member for family in families() for member in family.members.values()]
    return [member for member in members if f"{member.__module__}.".startswith(f"{module}.")]


def forget_module(module: str) -> None:
    """Remove the components that a module has defined, before it is executed again."""
    for member in members_of_module(module):
        del family_of(member).members[member.name]


def define(family: type[Component], name: str, **attributes: object) -> Callable[[F], F]:
    """Register a function as a member without settings whose `build` calls it, with class attributes; a decorator."""

    def register(function: F) -> F:
        body = {
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__doc__": function.__doc__,
            "__annotations__": {"name": Literal[name]},
            "name": name,
            "function": staticmethod(function),
            "build": lambda self, *arguments: function(*arguments),
            **attributes,
        }
        dataclass(frozen=True, kw_only=True)(type(function.__name__, (family,), body))
        return function

    return register


def origin_of(member: type) -> str | None:
    """Return what to import for a component: a module, or the path of a file; None if it is this package's own."""
    module = member.__module__
    if module.partition(".")[0] == PACKAGE:
        return None
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__latebloom_file__", None)  # set by plugins.load
    script = getattr(loaded, "__file__", None)
    if file is None and module in ("__main__", "__mp_main__") and script:
        file = Path(script).resolve()
    return module if file is None else str(file)


def _place(member: type) -> str:
    return origin_of(member) or member.__module__


@cache
def load_entry_points() -> dict[str, str]:
    """Import the modules of all installed plugins, once; return the reason for each that cannot be imported."""
    broken = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            broken[f"plugin {entry.name} ({entry.value})"] = f"{type(error).__name__}: {error}"
    return broken
