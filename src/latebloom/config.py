"""The configuration of a run, read from and written to JSON, and changed by `field=value`."""

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_type_hints

from latebloom.components import Component, is_family, without_none
from latebloom.delay.policy import Delay, check_trigger
from latebloom.delay.triggers import Trigger, WhenBeyond
from latebloom.engine.option_checks import option_mistakes, options_without_effect
from latebloom.engine.settings import Training
from latebloom.errors import ConfigError, require, unknown, unreadable
from latebloom.evaluation.result import CLAIM
from latebloom.evaluation.settings import Evaluating
from latebloom.fields import FIRST, check_fields
from latebloom.models import match
from latebloom.models.settings import Model
from latebloom.older_formats import migrate_run, older_forms
from latebloom.plugins import imported, origins
from latebloom.reading import is_unreadable, parse_json, read_json_file
from latebloom.tasks import Composite, Task
from latebloom.validation import read_settings


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that defines a run."""

    task: Task = field(default_factory=Composite)
    """The task."""
    model: Model = field(default_factory=Model)
    """The model."""
    delay: Delay | None = None
    """How attention is delayed; null trains everything from the start (joint training)."""
    training: Training = field(default_factory=Training)
    """How the model is trained."""
    evaluation: Evaluating = field(default_factory=Evaluating)
    """How the trained model is tested."""
    seed: int = 0
    """The seed of the initial weights and of the data."""
    imports: tuple[str, ...] = field(default=(), compare=False)
    """Modules and Python files to import first because they define components of the run; filled in when it is
    written."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.seed < 1 << 63, "seed", self.seed, "from 0 to 2^63 - 1")
        self.task.check_length(self.training.length, "training.length")
        for length in self.test_lengths:
            self.task.check_length(length, "evaluation.multiples")
        for mistake in self._mistakes():
            raise ConfigError(mistake)
        if self.delay is not None:
            for mistake in self._delay_mistakes(self.delay):
                raise ConfigError(mistake)
            if isinstance(self.delay.until, WhenBeyond):
                self.task.check_length(round(self.delay.until.multiple * self.training.length), "delay.until.multiple")

    def _mistakes(self) -> Iterator[str]:
        """Yield a sentence for each setting that a component does not support."""
        model, positions = self.model, self.model.attention.positions
        trained = self.task.token_count(self.training.length)
        longest = max(self.task.token_count(length) for length in (*self.watched_lengths, *self.test_lengths))
        covered = positions.max_tokens if model.has_attention else None
        if covered is not None and covered < max(trained, longest):
            named = f"training has {trained}" if covered < trained else f"the tests have {longest}"
            yield (
                f"model.attention.positions: {positions.name} covers {covered} tokens, and {named}; raise the limit, "
                f"{'train' if covered < trained else 'test'} shorter sequences or choose other positions"
            )
        window = model.attention.random_window if model.has_attention else None
        if window is not None and window.tokens >= trained:
            yield (
                f"model.attention.random_window.tokens: {window.tokens} has no effect, because no training sequence "
                f"has more than {trained} tokens; choose fewer"
            )
        if self.training.probe_every and not (model.is_recurrent and model.has_attention):
            yield (
                f"training.probe_every: a model of layout {model.layout!r} has no "
                f"{'recurrence' if model.has_attention else 'attention'}, so there is no interference to measure; set "
                "training.probe_every=0"
            )
        quiet = "set training.state_noise=0"
        if self.training.state_noise and not model.is_recurrent:
            yield f"training.state_noise: a model of layout {model.layout!r} has no recurrence to add noise to; {quiet}"
        if self.training.state_noise and not model.recurrence.state_noise:
            yield f"training.state_noise: the recurrence {model.recurrence.name} does not support state noise; {quiet}"
        yield from option_mistakes(self.training, model, self.task, self.delay)

    def check_effects(self) -> None:
        """Raise for a setting that has no effect; for runs that have not begun."""
        for mistake in options_without_effect(self.training, self.delay):
            raise ConfigError(mistake)
        for multiple in self.training.watch:
            self.task.check_length(round(multiple * self.training.length), "training.watch")

    def _delay_mistakes(self, delay: Delay) -> Iterator[str]:
        """Yield a sentence for each setting that contradicts the delay."""
        training, answers = self.training, self.task.answers
        shapes = [(phase.warmup, phase.schedule, phase.cycles) for phase in (training.delayed, training.full)]
        if not training.restart and shapes[0] != shapes[1]:
            yield (
                "training.restart: without a restart one schedule runs through both phases, so warmup, schedule and "
                f"cycles of delayed {shapes[0]} and full {shapes[1]} must be the same; rates and batches may differ"
            )
        layout = f"delay: a model of layout {self.model.layout!r}"
        if not self.model.has_attention:
            yield f"{layout} has no attention to hold back; set delay=null"
        if not self.model.is_recurrent:
            yield (
                f"{layout} mixes tokens with attention only, so there is nothing to learn while it is held back; "
                "set delay=null"
            )
        if not delay.until.configurable:
            choices = ", ".join(Trigger.choices())
            yield f"delay.until: {delay.until.name} needs your own training loop; choices: {choices}"
        for answer in delay.withhold:
            if answer not in answers:
                yield f"{unknown('delay.withhold', answer, answers)}, or [] to withhold nothing"
        if set(delay.withhold) == set(answers):
            yield (
                f"delay.withhold: {', '.join(delay.withhold)} are all the answers of {self.task.name}; leave at least "
                "one to learn from, or write [] to withhold nothing"
            )
        try:
            check_trigger(delay.until, training.steps)
        except ConfigError as error:
            yield f"delay.{error}"
        joint = delay.hold == "none" and not delay.withhold and not training.restart
        if joint and training.delayed == training.full:
            yield (
                "delay.hold: none, with nothing withheld and one schedule, is joint training; set delay=null, or name "
                "an answer with delay.withhold"
            )
        if delay.hold == "freeze" and self.model.attention.zero_output:
            yield (
                "delay.hold: freeze is the same as bypass while model.attention.zero_output starts attention at zero; "
                "set model.attention.zero_output=false, or hold=bypass"
            )
        switch, steps = delay.until.latest_step(training.steps), training.steps
        if switch + delay.ramp_steps > steps:
            yield (
                f"delay.ramp_steps: {delay.ramp_steps} after a switch at step {switch} do not end by the last step "
                f"{steps}; it must be {steps - switch} or less"
            )
        if isinstance(delay.until, WhenBeyond) and self.task.state_answer is None:
            yield f"delay.until: when_beyond watches state tracking, and {self.task.name} has none"

    @property
    def test_lengths(self) -> list[int]:
        return self.evaluation.lengths(self.training.length, max(2, self.task.shortest))

    @property
    def watched_lengths(self) -> list[int]:
        """The lengths at which held-out accuracy is measured during training."""
        length, longest = self.training.length, self.task.longest
        wanted = [length, CLAIM * length]
        if self.delay is not None and isinstance(self.delay.until, WhenBeyond):
            wanted.append(round(self.delay.until.multiple * length))
        wanted += [round(multiple * length) for multiple in self.training.watch]
        return [n for n in dict.fromkeys(wanted) if longest is None or n <= longest]

    def to_json(self) -> dict[str, Any]:
        """Return plain data with every field, and with the imports that its components need."""
        data = asdict(self)
        data["imports"] = sorted({*self.imports, *origins(self)})
        if not data["imports"]:
            del data["imports"]
        return data

    @cached_property
    def hash(self) -> str:
        """A hash of the settings, twelve characters long.

        It covers the fields that differ from their defaults, so that a new field with a default changes no hash. Of a
        default that was changed the first one counts.
        """
        return short_hash(_changed(self))

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """The hash, followed by those of earlier versions for the same settings."""
        return self.hash, *map(short_hash, older_forms(asdict(self), _changed(self)))

    def matches(self, hash: str) -> bool:
        """Return whether a hash is that of these settings, from this version or an earlier one."""
        return hash in self.hashes


def _changed(settings: Any) -> dict[str, Any]:
    """Return the fields of settings that differ from their defaults; a component always has its name."""
    found: dict[str, Any] = {"name": settings.name} if isinstance(settings, Component) else {}
    for item in fields(settings):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        default = item.metadata.get(FIRST, default)
        value = getattr(settings, item.name)
        if item.compare and (default is MISSING or value != default):
            found[item.name] = _changed(value) if is_dataclass(value) else value
    return found


def short_hash(data: Any) -> str:
    """Return a hash of plain data, twelve characters long."""
    text = json.dumps(_canonical(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _canonical(data: Any) -> Any:
    """Return the data with 3.0 as 3, because both are the same in a field of either type."""
    if isinstance(data, dict):
        return {name: _canonical(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_canonical(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


KINDS = {"language": "latebloom.lm.language"}
"""The modules that define runs of another kind, by the kind that their configuration names."""


class OtherRun(ABC):
    """The configuration of a run that the engine does not train, such as that of a language model.

    A subclass is a frozen dataclass with the fields `task` (its `name` and `answers`), `training` (its `length`,
    `steps` and `watch`), `seed` and `delay`, so that studies plan, tune, continue and report its runs like others. Its
    module is in `KINDS`.
    """

    kind: ClassVar[str]
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import, which the server that worker processes are forked from imports once."""
    members: ClassVar[dict[str, type["OtherRun"]]] = {}

    def __init_subclass__(cls) -> None:
        OtherRun.members[cls.kind] = cls

    @property
    @abstractmethod
    def test_lengths(self) -> list[int]:
        """The tested lengths."""

    @abstractmethod
    def train(self, folder: Path, study: Path, device: str, observe: Callable[[Any], None]) -> None:
        """Train and test the run in its folder, or continue it; `study` is the folder of the study."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the configuration that `to_json` has written."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data with every field."""
        return {"kind": self.kind, **asdict(cast(Any, self))}

    @property
    def hash(self) -> str:
        """A hash of the settings that differ from their defaults."""
        return short_hash({"kind": self.kind, **_changed(self)})

    @property
    def hashes(self) -> tuple[str, ...]:
        return (self.hash,)

    def matches(self, hash: str) -> bool:
        return hash == self.hash


def load_config(path: str | Path) -> RunConfig:
    """Read a RunConfig from a JSON file, or from standard input for `-`; fields left out have their defaults."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"config: {path} is a folder; give a file, such as {path / 'config.json'}")
    try:
        data = parse_json(sys.stdin.read()) if str(path) == "-" else read_json_file(path, follow=True)
    except FileNotFoundError:
        raise ConfigError(f"config: there is no file {path}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"config: {path} is not JSON (line {error.lineno}: {error.msg})") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_unreadable(error):
            raise unreadable(path, error) from None
        raise ConfigError(f"config: {path} cannot be read ({error})") from None
    names = [field.name for field in fields(RunConfig)]
    if isinstance(data, dict) and data and data.keys().isdisjoint(names):
        raise ConfigError(f"config: {path} is not the configuration of a run; it has none of {', '.join(names)}")
    return config_from(data)


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration with `field=value` changes, such as training.steps=100 or delay=none."""
    data: Any = json.loads(json.dumps(config.to_json()))
    # Changes of components come first, because the fields of a new component replace those of the old one.
    for override in sorted(overrides, key=lambda override: not _names_component(override.partition("=")[0])):
        name, equals, text = override.partition("=")
        if not equals or not all(name.split(".")):
            raise ConfigError(f"{override!r} is not a change; write field=value, such as training.steps=100")
        _put(data, name, text)
    return config_from(data)


def config_from(data: Any) -> RunConfig:
    """Return a configuration from plain data; fields left out have their defaults."""
    if isinstance(data, dict) and (kind := data.get("kind")) is not None:
        if not isinstance(kind, str) or kind not in KINDS:
            raise unknown("kind", str(kind), KINDS)
        import_module(KINDS[kind])
        return cast(Any, OtherRun.members[kind].from_json(data))  # it has what studies ask of a RunConfig
    data = dict(data) if isinstance(data, dict) else data
    named = data.get("imports") if isinstance(data, dict) else None
    names = [_absolute(name) for name in named] if isinstance(named, list | tuple) else []
    with imported(name for name in names if isinstance(name, str)) as missing:
        if names:
            data["imports"] = [name for name in names if name not in missing]
        delay = data.get("delay") if isinstance(data, dict) else None
        if isinstance(delay, dict) and isinstance(withhold := delay.get("withhold"), str):  # one name, or with commas
            data["delay"] = {**delay, "withhold": [name for name in withhold.split(",") if name]}
        model = data.get("model") if isinstance(data, dict) else None
        reference = model.get(match.FIELD) if isinstance(model, dict) else None
        if isinstance(model, dict):
            data["model"] = {name: value for name, value in model.items() if name != match.FIELD}
        config = read_settings(RunConfig, migrate_run(data))
        return config if reference is None else _with_matched_width(config, reference)


def _with_matched_width(config: RunConfig, reference: str) -> RunConfig:
    """Return the configuration with the width that `model.match_parameters` asks for."""
    try:
        model = match.match_parameters(config.model, reference, config.task.vocabulary_size)
    except ConfigError as error:
        raise ConfigError(f"model.{error}") from None
    return replace(config, model=model)


def _absolute(name: Any) -> Any:
    return str(Path(name).resolve()) if isinstance(name, str) and name.endswith(".py") else name


def _names_component(name: str) -> bool:
    """Return whether a field chooses a component: `task`, `task.name`, `model.attention.positions`."""
    kind: Any = RunConfig
    for key in name.split("."):
        if key == "name":
            return True
        kind = without_none(get_type_hints(kind).get(key)) if is_dataclass(kind) else None
    return is_family(kind)


def _value(text: str) -> Any:
    """Parse a value as JSON, or return the text itself, so that strings need no quotes."""
    try:
        return parse_json(text)
    except ValueError:
        return text


NONE = {
    "delay": None,
    "delay.withhold": [],
    **dict.fromkeys(f"model.attention.{name}" for name in ("window", "random_window", "gate_bias")),
    **dict.fromkeys(f"training.{name}" for name in ("slow_attention", "drop_path", "curriculum")),
}
"""What `none` means on the command line; in other fields it is a name, as in positions=none."""


def _put(data: dict[str, Any], name: str, text: str) -> None:
    *sections, last = name.split(".")
    for key in sections:
        inner = data[key] = {} if data.get(key) is None else data[key]
        if not isinstance(inner, dict):
            raise ConfigError(f"{name}: {key} is {inner!r}, which has no fields")
        data = inner
    value = NONE[name] if name in NONE and text.lower() == "none" else _value(text)
    if isinstance(value, str) and _names_component(name) and last != "name":
        data = data.setdefault(last, {})  # positions=rotary is positions.name=rotary
        if not isinstance(data, dict):  # another change has made it a number
            raise ConfigError(f"{name}: {last} is {data!r}, which has no fields")
        last = "name"
    if last == "name" and data.get("name") != value:
        data.clear()  # another component: the fields of the old one do not apply
    if isinstance(data.get(last), list) and not isinstance(value, list | None):
        value = [_value(part) for part in text.split(",") if part]  # a list without brackets and quotes
    data[last] = value
