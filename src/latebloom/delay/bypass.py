"""Gates on the attention of a model: attached for a delay, or set by hand."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import nn

from latebloom.delay.example import Example
from latebloom.delay.find import Found, Where, find_attention, has_gate
from latebloom.delay.gate import Gate, GatedForward, GatedResidual, gated_in
from latebloom.delay.kinds import KINDS, Kind
from latebloom.delay.libraries import libraries_of
from latebloom.delay.marks import delayed
from latebloom.errors import ConfigError


def attach(model: nn.Module, found: Found, gate: Gate) -> list[Any]:
    """Put attention behind a gate and mark the files of the model; return an object whose `remove()` undoes it."""
    modules = dict(model.named_modules())
    if missing := [path for path in dict.fromkeys((*found.matched, *found.held_paths)) if path not in modules]:
        raise ConfigError(
            f"where: attention was found in another model; {type(model).__name__} has no {', '.join(missing[:3])}"
        )
    attached: list[Any] = []
    for one in found.attention:
        if has_gate(modules[one.path]):
            attached.append(GatedResidual(modules[one.path], gate))
            continue
        held = [modules[path] for path in found.held[one.path]]
        for path in one.modules:
            stream = found.streams.get(path, (0,))
            attached.append(GatedForward(modules[path], gate, held, path == one.modules[-1], stream, found.bare))
    for library in libraries_of(model):
        mark_files = getattr(library, "mark_files", None)
        attached += [] if mark_files is None else mark_files(model)
    return attached


def bypass_attention(
    model: nn.Module,
    example: Example | None = None,
    *,
    where: Where | Found | None = None,
    kinds: Collection[Kind] = KINDS,
) -> None:
    """Remove attention from a model, as during a delay, to run weights that were saved during one.

    The arguments are those of `DelayedAttention`. `enable_attention(model)` undoes it.
    """
    if _set_gates(model, 0.0):
        return
    found = where if isinstance(where, Found) else find_attention(model, example, where=where, kinds=kinds)
    if found is None:
        raise ConfigError(
            f"bypass_attention: no input for {type(model).__name__} can be guessed; give `example`, the arguments of "
            "one small forward pass"
        )
    # What can be allowed concerns training alone.
    replace(found, refusals=tuple((word, reason) for word, reason in found.refusals if not word)).check(())
    attach(model, found, Gate(0.0))


def enable_attention(model: nn.Module) -> None:
    """Enable the attention of a model that was saved during a delay or changed by `bypass_attention`."""
    _set_gates(model, 1.0)


def _set_gates(model: nn.Module, value: float) -> bool:
    """Give the attention of a model a gate of its own; return whether there is attention behind a gate."""
    if any(module in delayed for module in model.modules()):
        raise ConfigError(f"delay: this {type(model).__name__} has a delay, which enables attention; see its remove()")
    owners, gate = list(gated_in(model)), Gate(value)
    for owner in owners:
        owner.gate = gate
    return bool(owners)
