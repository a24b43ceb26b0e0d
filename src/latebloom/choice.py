"""Families of settings chosen by name, such as the tasks and the triggers."""

from typing import Annotated, Any, ClassVar, Union


class Chosen:
    """Base of a family. A frozen dataclass below it with a `name` default joins the family by being defined.

    >>> class Fruit(Chosen): ...
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Apple(Fruit):
    ...     name: Literal["apple"] = "apple"
    >>> Fruit.choices["apple"]
    """

    choices: ClassVar[dict[str, type]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Chosen in cls.__bases__:
            cls.choices = {}
        elif isinstance(cls.__dict__.get("name"), str):
            cls.choices[cls.__dict__["name"]] = cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A field of the family's type is read as the member that its `name` says."""
        if "choices" not in cls.__dict__:
            return handler(source)
        from pydantic import Field

        members = Union[tuple(cls.choices.values())]  # noqa: UP007 (built at run time)
        return handler.generate_schema(
            Annotated[members, Field(discriminator="name")] if len(cls.choices) > 1 else members
        )
