"""The parts of a model, and what delayed attention training would do with them: print(latebloom.inspect(model))."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from latebloom.delay.find import Where, class_name, example_of, find_attention, has_gate, survey
from latebloom.delay.place import find_norm_after
from latebloom.errors import ConfigError
from latebloom.probes.grouping import joined_paths, pattern
from latebloom.probes.horizon import Horizon, check_untouched, memory_horizon, modes_kept

Example = Mapping[str, Any] | None
Kind = Literal["attention", "recurrence", "other"]
KINDS: tuple[Kind, ...] = ("attention", "recurrence", "other")
LINEAR = ("Linear", "Lightning", "Delta", "Rwkv", "Retention")
"""Class names that end in Attention and contain one of these words are recurrences."""


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


@dataclass(frozen=True)
class Inspection:
    """The parts of a model, as `inspect` finds them."""

    model: str
    """The model's class."""
    rows: tuple[Row, ...]
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
            key = (pattern(row.path), pattern(row.note), row.kind, row.class_name, row.parameters, row.held)
            groups.setdefault(key, []).append(row)
        return [
            Row(
                joined_paths([row.path for row in rows]), rows[0].kind, rows[0].class_name,
                sum(row.parameters for row in rows), rows[0].held, joined_paths([row.note for row in rows]), len(rows),
            )
            for rows in groups.values()
        ]  # fmt: skip

    def sentences(self) -> list[str]:
        """Return the summary, a list of sentences."""
        shares = ", ".join(f"{kind} {self.parameters(kind):,} ({self.share(kind):.1%})" for kind in KINDS)
        sentences = [f"{self.model}: {self.parameters():,} parameters; {shares}."]
        if self.refusal is not None:
            sentences.append(f"Delayed attention training refuses this model: {self.refusal.removeprefix('delay: ')}.")
        else:
            held = [row for row in self.rows if row.held]
            count = sum(row.parameters for row in held)
            s = "s" if len(held) > 1 else ""
            sentences.append(f"Delayed attention training would delay {len(held)} part{s} with {count:,} parameters.")
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
    seen = survey(model)
    refusal: str | None = None
    try:
        held = find_attention(model, where).matched
    except ConfigError as error:
        held, refusal = {}, str(error)
    kinds: dict[str, Kind] = {name: _kind(model.get_submodule(name)) for name in seen.passed_over}
    kinds |= dict.fromkeys([*seen.matched, *held], "attention")
    notes = seen.passed_over | dict.fromkeys(set(seen.matched) - set(held), "" if refusal else "not named by `where`")
    with modes_kept(model):
        for name, module in held.items():
            notes[name], reason = _place(model, name, module, example)
            refusal = refusal or reason
    rows = tuple(_rows(model, kinds, notes, set() if refusal else set(held)))
    if not horizon:
        return Inspection(type(model).__name__, rows, refusal)
    chosen = list(held) if where is not None and held else None
    try:
        measured, no_horizon = memory_horizon(model, chosen, example), None
    except Exception as error:  # models of other libraries may raise anything on unexpected tokens
        measured, no_horizon = None, _one_line(error)
    return Inspection(type(model).__name__, rows, refusal, measured, no_horizon)


def _place(model: nn.Module, name: str, module: nn.Module, example: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """Return where the gate of an attention module would be, and the reason if there cannot be one."""
    if has_gate(module):
        return "has its own gate", None
    example = example_of(model) if example is None else example
    if example is None:
        return "gated at its output; give an `example` to test that", None
    try:
        check_untouched(model)
    except ConfigError as error:
        return f"gated at its output; not tested: {_one_line(error).removeprefix('horizon: ')}", None
    try:
        norm = find_norm_after(model, name, module, example)
    except Exception as error:  # as above; the delay would raise the same error
        return "refused: see below", _one_line(error)
    return ("gated at its output" if norm is None else f"gated behind {norm[0].rpartition('.')[2]}"), None


def _kind(module: nn.Module) -> Kind:
    """Return the kind of a mixer that is not delayed: a recurrence, or softmax attention that is not causal."""
    name = type(module).__name__
    # Causal attention is passed over only if the configuration calls its layer a recurrence.
    is_recurrence = not name.endswith("Attention") or getattr(module, "is_causal", None) is True
    return "recurrence" if is_recurrence or any(word in name for word in LINEAR) else "attention"


def _rows(model: nn.Module, kinds: dict[str, Kind], notes: dict[str, str], held: set[str]) -> Iterator[Row]:
    """Yield a row for each mixer and each other part with parameters, in the order of the model."""
    modules = dict(model.named_modules())
    mixers = [name for name in modules if name in kinds]
    counted: set[int] = set()

    def is_above_mixer(name: str) -> bool:
        return any(mixer != name and (not name or mixer.startswith(f"{name}.")) for mixer in mixers)

    def count(module: nn.Module, recurse: bool) -> int:
        fresh = {id(p): p.numel() for p in module.parameters(recurse) if id(p) not in counted}
        counted.update(fresh)
        return sum(fresh.values())

    # A delayed part inside another mixer is counted separately, and first.
    inner = {name: count(modules[name], True) for name in mixers if name in held}
    shown: list[str] = []
    for name, module in modules.items():
        if any(not above or name.startswith(f"{above}.") for above in shown) and name not in held:
            continue
        kind_of_part = class_name(module)
        if name in kinds:
            shown.append(name)
            size = inner[name] if name in inner else count(module, True)
            yield Row(name, kinds[name], kind_of_part, size, name in held, notes.get(name, ""))
        elif is_above_mixer(name) or (not name and mixers == []):
            if own := count(module, False):
                yield Row(name, "other", kind_of_part, own, False, "parameters of its own")
        elif any(True for _ in module.parameters()):
            shown.append(name)
            size = count(module, True)
            yield Row(name, "other", kind_of_part, size, False, "" if size else "shares its weights with another part")


def _one_line(error: Exception) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return line if isinstance(error, ConfigError) else f"{type(error).__name__}: {line}"
