"""A look at a model before training it: what mixes tokens, what delayed attention training would hold back, and why.

print(latebloom.inspect(model))
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from latebloom.delay.find import Where, class_name, find_attention, is_own, survey
from latebloom.delay.hooks import example_of
from latebloom.delay.place import find_norm_after
from latebloom.errors import ConfigError
from latebloom.probes.grouping import joined_paths, pattern
from latebloom.probes.horizon import Horizon, check_untouched, memory_horizon, modes_kept

Example = Mapping[str, Any] | None
Kind = Literal["attention", "recurrence", "other"]
KINDS: tuple[Kind, ...] = ("attention", "recurrence", "other")
LINEAR = ("Linear", "Lightning", "Delta", "Rwkv", "Retention")
"""Words in the name of a class called ...Attention that is a recurrence."""


@dataclass(frozen=True)
class Row:
    """One part of a model."""

    path: str
    """Where it stands in the model; for several equal parts, such as model.layers.{0,2}.mamba."""
    kind: Kind
    class_name: str
    parameters: int
    """Parameters of its own: a weight that two parts share counts for the first."""
    held: bool
    """Whether delayed attention training would hold it back."""
    note: str = ""
    """How it would be held back, or why not."""
    count: int = 1
    """How many equal parts the row stands for."""


@dataclass(frozen=True)
class Inspection:
    """What a model is made of, as `inspect` sees it."""

    model: str
    """The model's class."""
    rows: tuple[Row, ...]
    refusal: str | None = None
    """Why delayed attention training refuses the model; None where it does not."""
    horizon: Horizon | None = None
    """How far a token is felt with attention left out."""
    no_horizon: str | None = None
    """Why there is no horizon, where there should be one."""

    def parameters(self, kind: Kind | None = None) -> int:
        """The number of parameters, of all parts or of one kind."""
        return sum(row.parameters for row in self.rows if kind in (None, row.kind))

    def share(self, kind: Kind) -> float:
        """The share of the parameters that a kind has, from 0 to 1."""
        return self.parameters(kind) / max(1, self.parameters())

    def grouped(self) -> list[Row]:
        """The rows, equal parts of different layers as one."""
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
        """What follows from the rows, a sentence each."""
        shares = ", ".join(f"{kind} {self.parameters(kind):,} ({self.share(kind):.1%})" for kind in KINDS)
        said = [f"{self.model}: {self.parameters():,} parameters; {shares}."]
        if self.refusal is not None:
            said.append(f"Delayed attention training refuses this model: {self.refusal.removeprefix('delay: ')}.")
        else:
            held = [row for row in self.rows if row.held]
            count = sum(row.parameters for row in held)
            s = "s" if len(held) > 1 else ""
            said.append(f"Delayed attention training would hold back {len(held)} part{s} with {count:,} parameters.")
        if self.horizon is not None:
            said.append(str(self.horizon))
        elif self.no_horizon is not None:
            said.append(f"The memory horizon was not measured: {self.no_horizon.removeprefix('horizon: ')}.")
        return said

    def __str__(self) -> str:
        lines = []
        for row in self.grouped():
            words = f"{row.kind:10}  {'held back' * row.held:9}  {row.parameters:>13,}  {row.path}: {row.class_name}"
            lines.append(f"{words}  {row.note}".rstrip())
        return "\n".join([*lines, *self.sentences()])


def inspect(model: nn.Module, where: Where | None = None, example: Example = None, horizon: bool = True) -> Inspection:
    """What a model is made of and what delayed attention training would do to it; the model is left as it was.

    A model that would be refused is no error here: the reason is in `refusal`. `where` and `example` are those of
    `DelayedAttention`; `horizon` asks for the memory horizon, which takes a few passes over 128 tokens.
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
    except Exception as error:  # a model of any library may fail in any way on tokens that it did not expect
        measured, no_horizon = None, _one_line(error)
    return Inspection(type(model).__name__, rows, refusal, measured, no_horizon)


def _place(model: nn.Module, name: str, module: nn.Module, example: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """Where the gate of an attention would stand, and why there can be none."""
    if is_own(module):
        return "left out by its own gate", None
    example = example_of(model) if example is None else example
    if example is None:
        return "gated at its output; give an `example` to have that place tried", None
    try:
        check_untouched(model)
    except ConfigError as error:
        return f"gated at its output; not tried: {_one_line(error).removeprefix('horizon: ')}", None
    try:
        norm = find_norm_after(model, name, module, example)
    except Exception as error:  # as above; the delay would fail with the same words
        return "refused: see below", _one_line(error)
    return ("gated at its output" if norm is None else f"gated behind {norm[0].rpartition('.')[2]}"), None


def _kind(module: nn.Module) -> Kind:
    """The kind of a mixer that was not matched: a recurrence, or softmax attention of a sort that is not causal."""
    name = type(module).__name__
    # A causal one is passed over for one reason alone: the configuration calls its layer a recurrence.
    is_recurrence = not name.endswith("Attention") or getattr(module, "is_causal", None) is True
    return "recurrence" if is_recurrence or any(word in name for word in LINEAR) else "attention"


def _rows(model: nn.Module, kinds: dict[str, Kind], notes: dict[str, str], held: set[str]) -> Iterator[Row]:
    """A row for each mixer, and for each part beside them that holds parameters, in the model's order."""
    modules = dict(model.named_modules())
    mixers = [name for name in modules if name in kinds]
    counted: set[int] = set()

    def is_above_mixer(name: str) -> bool:
        return any(mixer != name and (not name or mixer.startswith(f"{name}.")) for mixer in mixers)

    def count(module: nn.Module, recurse: bool) -> int:
        fresh = {id(p): p.numel() for p in module.parameters(recurse) if id(p) not in counted}
        counted.update(fresh)
        return sum(fresh.values())

    # What is held back inside another mixer is counted on its own, and before it.
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
    words = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return words if isinstance(error, ConfigError) else f"{type(error).__name__}: {words}"
