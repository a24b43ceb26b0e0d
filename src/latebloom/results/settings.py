"""Configurations as flat settings with the names that overrides use: `training.full.warmup`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from latebloom.components import Component
from latebloom.config import RunConfig, config_from
from latebloom.errors import ConfigError
from latebloom.reading import parse_json


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration in JSON form by their full names."""
    if isinstance(config, dict):
        for key, value in config.items():
            if f"{prefix}{key}" != "imports":  # where a component is defined is no setting
                yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], config


def settings_in_all(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings of several configurations that were written as JSON, to be compared; empty for one that is
    not JSON.

    Fields that are newer than a configuration have their defaults. If this version cannot read all of the
    configurations, all are returned as they were written.
    """
    written = [_parsed(text) for text in texts]
    with suppress(ConfigError):
        read = [config_from(config) if config else None for config in written]
        found = iter(comparable([config for config in read if config]))
        return [next(found) if config else {} for config in read]
    return [dict(flat(config)) for config in written]


def comparable(configs: Sequence[RunConfig]) -> list[dict[str, Any]]:
    """Return the settings of several configurations.

    A setting that only some of the components have, such as one of the scores `log_n`, is left out if it has its
    default wherever it exists.
    """
    settings = [dict(flat(json.loads(json.dumps(config.to_json())))) for config in configs]
    names = dict.fromkeys(name for one in settings for name in one)
    defaults = [tuple(_component_defaults(config)) for config in configs]
    left_out = {
        name
        for name in names
        if any(name not in one for one in settings)
        and all(
            name not in one or any(f"{name}.".startswith(f"{default}.") for default in known)
            for one, known in zip(settings, defaults, strict=True)
        )
    }
    return [{name: value for name, value in one.items() if name not in left_out} for one in settings]


def _component_defaults(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the fields of components that have their defaults."""
    for item in fields(settings):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        value, name = getattr(settings, item.name), f"{prefix}{item.name}"
        if isinstance(settings, Component) and item.name != "name" and value == default:
            yield name
        elif is_dataclass(value):
            yield from _component_defaults(value, f"{name}.")


def _parsed(text: str) -> dict[str, Any]:
    try:
        config = parse_json(text)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def changes(first: RunConfig, other: RunConfig) -> dict[str, Any]:
    """Return the settings of `other` that differ from `first`."""
    one, two = comparable([first, other])
    return {name: value for name, value in two.items() if one.get(name) != value}
