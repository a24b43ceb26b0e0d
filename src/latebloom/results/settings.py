"""A configuration as its settings, each named as one would write it: `training.full.warmup`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from latebloom.config import RunConfig, config_from
from latebloom.errors import ConfigError


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a configuration that was read from JSON, by their full names."""
    if isinstance(config, dict):
        for key, value in config.items():
            if f"{prefix}{key}" != "imports":  # where a component is defined is no setting
                yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], config


def settings_in(text: str) -> dict[str, Any]:
    """The settings of a configuration that was written as JSON; none if it is not."""
    (found,) = settings_in_all([text])
    return found


def settings_in_all(texts: Sequence[str]) -> list[dict[str, Any]]:
    """The settings of several, to be set beside each other. One that there was not yet when a configuration was written
    has its default, which does what was done then; but if this version cannot read them all, all stand as written."""
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
    """The fields in which a configuration differs from another, as `field=value` names them."""
    one, two = dict(flat(first.to_json())), dict(flat(other.to_json()))
    return {name: value for name, value in two.items() if one.get(name) != value}
