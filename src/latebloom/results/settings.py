"""A configuration as its settings, each named as one would write it: `training.full.warmup`."""

from collections.abc import Iterator
from typing import Any


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a configuration that was read from JSON, by their full names."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], config
