"""A configuration as its settings, each named as one would write it: `training.full.warmup`."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from latebloom.config import config_from
from latebloom.errors import ConfigError


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a configuration that was read from JSON, by their full names."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix[:-1], config


def settings_in(text: str) -> dict[str, Any]:
    """The settings of a configuration that was written as JSON; none if it is not. One that there was not yet when it
    was written has its default, which does what was done then."""
    try:
        config = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(config, dict):
        return {}
    with suppress(ConfigError):  # one that this version cannot read stands as it is
        config = json.loads(json.dumps(config_from(config).to_json()))
    return dict(flat(config))
