"""The parts of a model, and what delayed attention training would do with them: print(latebloom.inspect(model))."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

from torch import nn

from latebloom.delay.find import Found, Where, class_name, find_attention, has_gate, look_at_names
from latebloom.delay.libraries import libraries_of
from latebloom.delay.observe import Attention
from latebloom.delay.record import is_inside
from latebloom.errors import ConfigError, first_line
from latebloom.probes.horizon import Horizon, check_untouched, memory_horizon

Example = Mapping[str, Any] | None
Kind = Literal["attention", "recurrence", "other"]
KINDS: tuple[Kind, ...] = ("attention", "recurrence", "other")
_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")


@dataclass(frozen=True)
class Row:
    """One part of a model."""

    path: str
    """Its path in the model; several equal parts have one such as model.layers.{0,2}.mamba."""
    kind: Kind
    class_name: str
    parameters: int
    """Its number of parameters; a weight that two parts share counts for the first."""
    held: bool
    """Whether delayed attention training would delay it."""
    note: str = ""
    """How it would be delayed, or why not."""
    count: int = 1
    """The number of equal parts that the row stands for."""
    frozen: int = 0
    """How many of its parameters are not trained, because their requires_grad is off."""


@dataclass(frozen=True)
class Inspection:
    """The parts of a model, as `inspect` finds them."""

    model: str
    """The model's class."""
    rows: tuple[Row, ...]
    """The parts, in the order of the model."""
    refusal: str | None = None
    """Why delayed attention training refuses the model; None if it accepts it."""
    horizon: Horizon | None = None
    """How far a token has influence with attention disabled."""
    no_horizon: str | None = None
    """Why the horizon could not be measured."""

    def parameters(self, kind: Kind | None = None) -> int:
        """Return the number of parameters of all parts or of one kind."""
        return sum(row.parameters for row in self.rows if kind in (None, row.kind))

    def share(self, kind: Kind) -> float:
        """Return the share of the parameters that a kind has, from 0 to 1."""
        return self.parameters(kind) / max(1, self.parameters())

    def grouped(self) -> list[Row]:
        """Return the rows, with equal parts of different layers as one."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            key = (pattern(row.path), pattern(row.note), row.kind, row.class_name, row.parameters, row.held, row.frozen)
            groups.setdefault(key, []).append(row)
        return [
            replace(
                rows[0],
                path=joined_paths([row.path for row in rows]),
                parameters=sum(row.parameters for row in rows),
                note=joined_paths([row.note for row in rows]),
                count=len(rows),
                frozen=sum(row.frozen for row in rows),
            )
            for rows in groups.values()
        ]

    def sentences(self) -> list[str]:
        """Return the summary, a list of sentences."""
        shares = ", ".join(f"{kind} {self.parameters(kind):,} ({self.share(kind):.1%})" for kind in KINDS)
        sentences = [f"{self.model}: {self.parameters():,} parameters; {shares}."]
        if self.refusal is not None:
            sentences.append(f"Delayed attention training refuses this model: {self.refusal.removeprefix('delay: ')}.")
        else:
            held = [row for row in self.rows if row.held]
            frozen = sum(row.frozen for row in held)
            count = sum(row.parameters for row in held) - frozen
            s, besides = "s" if len(held) > 1 else "", f" and {frozen:,} that are not trained" if frozen else ""
            sentences.append(
                f"Delayed attention training would delay {len(held)} part{s} with {count:,} parameters{besides}."
            )
        if self.horizon is not None:
            sentences.append(str(self.horizon))
        elif self.no_horizon is not None:
            sentences.append(f"The memory horizon was not measured: {self.no_horizon.removeprefix('horizon: ')}.")
        return sentences

    def __str__(self) -> str:
        lines = []
        for row in self.grouped():
            line = f"{row.kind:10}  {'delayed' * row.held:7}  {row.parameters:>13,}  {row.path}: {row.class_name}"
            lines.append(f"{line}  {row.note}".rstrip())
        return "\n".join([*lines, *self.sentences()])


def inspect(model: nn.Module, where: Where | None = None, example: Example = None, horizon: bool = True) -> Inspection:
    """Return the parts of a model and what delayed attention training would do with them; the model is not changed.

    A model that would be refused is not an error here: the reason is in `refusal`. `where` and `example` are those of
    `DelayedAttention`; `horizon` measures the memory horizon, which takes a few passes over 128 tokens.
    """
    found, refusal = Found((), {}, {}), None
    try:
        found = _look(model, where, example)
        refusal = f"delay: {found.refusals[0][1]}" if found.refusals else None
    except ConfigError as error:
        refusal = str(error)
    rows = tuple(_rows(model, found, is_refused=refusal is not None))
    measured = no_horizon = None
    if horizon:
        try:
            measured = memory_horizon(model, found, example)
        except Exception as error:  # models of other libraries may raise anything on unexpected tokens
            no_horizon = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            no_horizon += first_line(error).rstrip(".")
    return Inspection(type(model).__name__, rows, refusal, measured, no_horizon)


def _look(model: nn.Module, where: Where | None, example: Example) -> Found:
    if any(parameter.is_meta for parameter in model.parameters()):
        if not libraries_of(model):
            raise ConfigError(
                f"delay: this {type(model).__name__} is on the meta device, and nothing is known of its classes by "
                "their names; inspect it once it has weights"
            )
        return look_at_names(model)
    check_untouched(model)
    found = find_attention(model, example, where=where)
    if found is None:
        raise ConfigError(
            f"delay: no input for {type(model).__name__} could be guessed, so what it does is not known; give `example`"
        )
    return found


def _rows(model: nn.Module, found: Found, is_refused: bool) -> Iterator[Row]:
    """Yield a row for each mixer, each other part that is held back, and the rest, in the order of the model."""
    modules = dict(model.named_modules())
    kinds: dict[str, Kind] = {}
    notes = dict(found.passed_over)
    for name, reason in found.passed_over.items():
        kinds[name] = "recurrence" if name in found.mixers else "attention"
        if getattr(modules[name], "role", None) == "recurrence":  # a part of this package's models
            notes[name] = f"{reason}; its state has {modules[name].state_size:,} numbers per sequence"
    held = {name: one.path for one in found.attention for name in found.held[one.path]}
    for name, path in held.items():
        kinds[name], notes[name] = "attention", "" if name == path else f"acts through {path.rpartition('.')[2]} alone"
    for one in found.attention:
        if one.path in held:
            notes[one.path] = _place(modules, one)
    counted: set[int] = set()
    shared = {id(model.get_parameter(name)) for name in found.shared}  # they count for the other modules that have them

    def count(module: nn.Module, recurse: bool) -> int:
        fresh = {id(p): p.numel() for p in module.parameters(recurse) if id(p) not in counted}
        counted.update(fresh)
        return sum(fresh.values())

    # A held part inside another mixer is counted separately, and first.
    inner, frozen = dict[str, int](), dict[str, int]()
    for name in (name for name in kinds if name in held):
        still = [p for p in modules[name].parameters() if not p.requires_grad and id(p) not in counted]
        counted.update(shared)
        inner[name], frozen[name] = count(modules[name], True), sum(p.numel() for p in still)
    counted.difference_update(shared)
    scales = {name: model.get_parameter(name) for name in found.scales}
    counted.update(map(id, scales.values()))
    shown: list[str] = []
    for name, module in modules.items():
        for scale, one in scales.items():
            if scale.rpartition(".")[0] == name:
                size, note = one.numel(), "acts through attention alone"
                frozen_size = 0 if one.requires_grad else size
                yield Row(scale, "attention", "Parameter", size, not is_refused, note, frozen=frozen_size)
        if any(is_inside(name, above) for above in shown) and name not in held:
            continue
        if name in kinds:
            shown.append(name)
            size = inner[name] if name in inner else count(module, True)
            is_held = name in held and not is_refused
            still = frozen.get(name, 0)
            yield Row(name, kinds[name], class_name(module), size, is_held, notes.get(name, ""), frozen=still)
        elif any(is_inside(mixer, name) for mixer in kinds) or (not name and not kinds):
            if own := count(module, False):
                yield Row(name, "other", class_name(module), own, False, "parameters of its own")
        elif any(True for _ in module.parameters()):
            shown.append(name)
            size = count(module, True)
            note = "" if size else "shares its weights with another part"
            yield Row(name, "other", class_name(module), size, False, note)


def _place(modules: dict[str, nn.Module], attention: Attention) -> str:
    if has_gate(modules[attention.path]):
        return "has its own gate"
    last = attention.modules[-1]
    return "gated at its output" if last == attention.path else f"gated behind {last.rpartition('.')[2]}"


def pattern(path: str) -> str:
    """Return a path with `{}` for its first number, the index of the layer."""
    return _NUMBER.sub("{}", path, count=1)


def joined_paths(paths: Sequence[str]) -> str:
    """Join paths that differ only in their first number."""
    found = [_NUMBER.search(path) for path in paths]
    numbers = sorted({int(match.group()) for match in found if match})
    if len(numbers) < 2:
        return paths[0]
    return _NUMBER.sub(f"{{{joined_numbers(numbers)}}}", paths[0], count=1)


def joined_numbers(numbers: Sequence[int]) -> str:
    """Abbreviate increasing numbers: 0,2,4 or 0,2,...,46 or 0-3,5-11."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    is_even = all(after - before == step for before, after in pairwise(numbers))
    if len(numbers) > 4 and is_even and step > 1:
        return f"{numbers[0]},{numbers[1]},...,{numbers[-1]}"
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
