"""What a run is: one frozen RunConfig, read from and written to JSON, changed by `field=value` on the way."""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from latebloom.delay.policy import Delay, check_trigger
from latebloom.delay.triggers import Trigger, WhenBeyond
from latebloom.engine.settings import Training
from latebloom.errors import ConfigError, require, unknown
from latebloom.evaluation.result import CLAIM
from latebloom.evaluation.settings import Evaluating
from latebloom.fields import check_fields
from latebloom.models.settings import Model
from latebloom.tasks import Composite, Task
from latebloom.validation import read_settings


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, from the first weights to the last measurement."""

    task: Task = field(default_factory=Composite)
    """What is learned."""
    model: Model = field(default_factory=Model)
    """What learns it."""
    delay: Delay | None = None
    """How attention is held back; null trains everything together from the start (joint)."""
    training: Training = field(default_factory=Training)
    """How it is trained."""
    evaluation: Evaluating = field(default_factory=Evaluating)
    """How it is tested."""
    seed: int = 0
    """Decides the first weights and the data."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.seed < 1 << 63, "seed", self.seed, "from 0 to 2^63 - 1")
        self.task.check_length(self.training.length, "training.length")
        for length in self.test_lengths:
            self.task.check_length(length, "evaluation.multiples")
        positions, context = self.model.attention.positions, self.model.attention.context
        if "a" in self.model.layout and positions == "learned":
            longest = max(self.task.token_count(length) for length in (*self.watched_lengths, *self.test_lengths))
            require(
                context >= longest,
                "model.attention.context",
                context,
                f"{longest} or more to cover the tests",
            )
        if self.training.state_noise and "r" not in self.model.layout:
            raise ConfigError(
                f"training.state_noise: a model of layout {self.model.layout!r} has no recurrence whose state could be "
                "disturbed; set training.state_noise=0"
            )
        if self.delay is not None:
            self._check_delay(self.delay)

    def _check_delay(self, delay: Delay) -> None:
        shapes = [(phase.warmup, phase.schedule, phase.cycles) for phase in (self.training.delayed, self.training.full)]
        if not self.training.restart and shapes[0] != shapes[1]:
            raise ConfigError(
                "training.restart: without a restart one schedule runs through both phases, so warmup, schedule and "
                f"cycles of delayed {shapes[0]} and full {shapes[1]} must be the same; rates and batches may differ"
            )
        if "a" not in self.model.layout:
            raise ConfigError(
                f"delay: a model of layout {self.model.layout!r} has no attention to hold back; set delay=null"
            )
        if "r" not in self.model.layout:
            raise ConfigError(
                f"delay: a model of layout {self.model.layout!r} has nothing but attention to mix tokens, so there is "
                "nothing to learn from while it is held back; set delay=null"
            )
        if type(delay.until) not in Trigger.choices.values():
            raise ConfigError(
                f"delay.until: {type(delay.until).__name__} is for a loop of your own, which tells it of things; "
                f"choices: {', '.join(Trigger.choices)}"
            )
        for answer in delay.withhold:
            if answer not in self.task.answers:
                raise unknown("delay.withhold", answer, self.task.answers)
        if set(delay.withhold) == set(self.task.answers):
            raise ConfigError(
                f"delay.withhold: {', '.join(delay.withhold)} are all the answers of {self.task.name}; "
                "leave at least one to learn from"
            )
        try:
            check_trigger(delay.until, self.training.steps)
        except ConfigError as error:
            raise ConfigError(f"delay.{error}") from None
        joint = delay.hold == "none" and not delay.withhold and not self.training.restart
        if joint and self.training.delayed == self.training.full:
            raise ConfigError(
                "delay.hold: none, with nothing withheld and one schedule, is joint training; set delay=null, or name "
                "an answer with delay.withhold"
            )
        if delay.hold == "freeze" and self.model.attention.zero_output:
            raise ConfigError(
                "delay.hold: freeze is the same as bypass while model.attention.zero_output starts attention at zero; "
                "set model.attention.zero_output=false, or hold=bypass"
            )
        switch, steps = delay.until.latest_step(self.training.steps), self.training.steps
        if switch + delay.ramp_steps > steps:
            raise ConfigError(
                f"delay.ramp_steps: {delay.ramp_steps} after a switch at step {switch} is not done by the last step "
                f"{steps}; it must be {steps - switch} or less"
            )
        if isinstance(delay.until, WhenBeyond):
            if self.task.state_answer is None:
                raise ConfigError(f"delay.until: when_beyond watches state tracking, and {self.task.name} has none")
            self.task.check_length(round(delay.until.multiple * self.training.length), "delay.until.multiple")

    @property
    def test_lengths(self) -> list[int]:
        return self.evaluation.lengths(self.training.length, max(2, self.task.shortest))

    @property
    def watched_lengths(self) -> list[int]:
        """The lengths at which held-out accuracy is measured while training goes on."""
        length, longest = self.training.length, self.task.longest
        wanted = [length, CLAIM * length]
        if self.delay is not None and isinstance(self.delay.until, WhenBeyond):
            wanted.append(round(self.delay.until.multiple * length))
        return [n for n in dict.fromkeys(wanted) if longest is None or n <= longest]

    def to_json(self) -> dict[str, Any]:
        """Plain data, with every field spelt out."""
        return asdict(self)

    @property
    def hash(self) -> str:
        """Twelve characters that two runs share only if every setting is the same."""
        return short_hash(self.to_json())


def short_hash(data: Any) -> str:
    """Twelve characters that plain data share only if they are the same."""
    text = json.dumps(_canonical(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _canonical(data: Any) -> Any:
    """Data in which 3 and 3.0 are the same, as they are in a field of either."""
    if isinstance(data, dict):
        return {name: _canonical(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_canonical(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def load_config(path: str | Path) -> RunConfig:
    """A RunConfig from a JSON file, or from standard input for `-`; fields left out have their defaults."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"config: {path} is a folder; give a file, such as {path / 'config.json'}")
    try:
        data = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"config: there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: {path} cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"config: {path} is not JSON (line {error.lineno}: {error.msg})") from None
    names = [f.name for f in fields(RunConfig)]
    if isinstance(data, dict) and data and data.keys().isdisjoint(names):
        raise ConfigError(f"config: {path} is not the configuration of a run; it has none of {', '.join(names)}")
    return config_from(data)


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The configuration with `field=value` changes, such as training.steps=100 or delay=null."""
    data: Any = json.loads(json.dumps(config.to_json()))
    changes = []
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not all(name.split(".")):
            raise ConfigError(f"{override!r} is not a change; write field=value, such as training.steps=100")
        changes.append((name, text))
    # Another task or trigger first, whatever the order: its fields replace those of the old one.
    for name, text in sorted(changes, key=lambda change: not change[0].endswith(".name")):
        _put(data, name.split("."), text, name)
    return config_from(data)


def config_from(data: Any) -> RunConfig:
    """The configuration that plain data stand for; fields left out have their defaults."""
    delay = data.get("delay") if isinstance(data, dict) else None
    if isinstance(delay, dict) and isinstance(delay.get("withhold"), str):  # a name, or several with commas
        data = {**data, "delay": {**delay, "withhold": [name for name in delay["withhold"].split(",") if name]}}
    return read_settings(RunConfig, data)


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself, so that strings need no quotes."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _put(data: dict[str, Any], keys: list[str], text: str, name: str) -> None:
    for key in keys[:-1]:
        inner = data.get(key, {})
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{name}: {key} is {inner!r}, which has no fields")
        data[key] = inner
        data = inner
    last, value = keys[-1], _value(text)
    if name == "delay" and text.lower() == "none":  # elsewhere none is a word, as in positions=none
        value = None
    if last == "name" and data.get("name") != value:
        data.clear()  # another kind of task or trigger: the fields of the old one do not apply
    if isinstance(data.get(last), list) and not isinstance(value, list | None):
        value = [_value(part) for part in text.split(",") if part]  # a row without brackets and quotes
    data[last] = value
