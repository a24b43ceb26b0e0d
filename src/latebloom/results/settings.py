"""Configurations as flat settings with the names that overrides use: `training.full.warmup`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from latebloom.config import RunConfig, config_from
from latebloom.errors import ConfigError


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration in JSON form by their full names."""
    if isinstance(config, dict):
        for key, value in config.items():
            if f"{prefix}{key}" != "imports":  # where a component is defined is no setting
                yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], config


def settings_in(text: str) -> dict[str, Any]:
    """Return the settings of a configuration that was written as JSON; empty if it is not JSON."""
    return settings_in_all([text])[0]


def settings_in_all(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings of several configurations, to be compared.

    Fields that are newer than a configuration have their defaults. If this version cannot read all of the
    configurations, all are returned as they were written.
    """
    written = [_parsed(text) for text in texts]
    with suppress(ConfigError):
        written = [json.loads(json.dumps(config_from(config).to_json())) if config else {} for config in written]
    return [dict(flat(config)) if config else {} for config in written]


def _parsed(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def changes(first: RunConfig, other: RunConfig) -> dict[str, Any]:
    """Return the settings of `other` that differ from `first`."""
    one, two = dict(flat(first.to_json())), dict(flat(other.to_json()))
    return {name: value for name, value in two.items() if one.get(name) != value}
