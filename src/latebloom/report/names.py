"""Names of arms and answers as charts show them."""

from hashlib import sha256

from latebloom.errors import printable

LONGEST = 60
"""Longer names are cut."""
OF_EVERY_OBJECT = {
    "constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString", "valueOf",
    "__proto__", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__",
}  # fmt: skip
"""Names that every JavaScript object has; Vega takes them for values of its own."""
INVISIBLE = "\u2060"
"""A character without width."""


def shown_name(name: str) -> str:
    """Return a name without control characters and not too long, and never one that every JavaScript object has."""
    name = printable(name)
    if len(name) > LONGEST:  # two long names must not become one
        name = f"{name[: LONGEST - 9]}…{sha256(name.encode()).hexdigest()[:8]}"
    return f"{name}{INVISIBLE}" if name in OF_EVERY_OBJECT else name
