"""The settings in which two configurations differ, in words."""

import json
from collections.abc import Iterator
from typing import Any

MOST_NAMED = 6
"""The number of differences that a message lists."""
LONGEST_VALUE = 40
"""Characters of a value that a message repeats."""


def describe_differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return `field: found -> wanted` for each setting in which two configurations, as plain data, differ."""
    named = [f"{name}: {_short(one)} -> {_short(other)}" for name, one, other in differences(found, wanted)]
    if len(named) > MOST_NAMED:
        named[MOST_NAMED:] = [f"and {len(named) - MOST_NAMED} more"]
    return ", ".join(named)


def differences(found: Any, wanted: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the full name and both values of each setting that differs.

    Components of different kinds, such as two triggers, differ as a whole.
    """
    both = isinstance(found, dict) and isinstance(wanted, dict)
    if both and found.get("name") == wanted.get("name"):
        for key in {**found, **wanted}:
            if not name and key == "imports":  # where a component is defined is no setting
                continue
            yield from differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
    elif found != wanted:
        yield name, found, wanted


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
