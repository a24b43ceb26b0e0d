"""Marks of weights that were saved during a delay, and the warning when they are loaded without one.

Attention that was left out in training is untrained. Weights alone do not show this, so they carry a mark:

- the metadata of a `state_dict`, which `torch.save` keeps and which other code ignores;
- an entry of its own in files that have no metadata (safetensors). Its name is the warning, because a library that does
  not know the entry reports its name.

torch has no hook for the loading of a `state_dict` into a module that is not prepared for it. Therefore importing this
file wraps `nn.Module.load_state_dict`, once. The wrapper removes the entry, loads as before, and compares the mark with
the gate of the model.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from latebloom.delay.gate import MARK, Gate, Mark, gated_in
from latebloom.errors import ConfigError, warn_user

delayed: WeakSet[nn.Module] = WeakSet()
"""Models that have a delay."""
awaiting: WeakSet[nn.Module] = WeakSet()
"""Models that a trainer restores together with their delay."""
_loaded: WeakKeyDictionary[nn.Module, Mark] = WeakKeyDictionary()
"""The marks of weights that were loaded into models without a gate."""
PREFIX = "latebloom: "
"""How the name of an entry in a file begins."""


def warning_of(mark: Mark) -> str | None:
    """Return what to know before running weights with this mark; None if the model runs as it was trained."""
    if mark["gate"] == 1.0:
        return None
    ways = "give the model a DelayedAttention with the state of its delay"
    if mark["gate"] > 0.0:
        return (
            f"{PREFIX}attention was scaled by {mark['gate']:.3g} when these weights were saved; to run them so, {ways}"
        )
    # Without parentheses: libraries that rename entries treat them as a regular expression.
    return (
        f"{PREFIX}these weights were trained without attention, which is untrained in them; to run them so, call "
        f"latebloom.bypass_attention on the model, or {ways}"
    )


def mark_of(model: nn.Module) -> Mark | None:
    """Return the mark that the weights of a model get."""
    return next((owner.gate.mark() for owner in gated_in(model)), None)


def entry_for(model: nn.Module) -> dict[str, Tensor]:
    """Return the entry with which a file without metadata is marked; empty if the weights need none."""
    mark = mark_of(model)
    text = None if mark is None else warning_of(mark)
    return (
        {} if mark is None or text is None else {text: torch.tensor([mark["step"], mark["gate"]], dtype=torch.float32)}
    )


def take_loaded(model: nn.Module) -> Mark | None:
    """Return the mark of the weights that were loaded into a model, or a part of it, before it had a gate."""
    marks = [mark for module in model.modules() if (mark := _loaded.pop(module, None)) is not None]
    return marks[-1] if marks else None


def note_loading(model: nn.Module, mark: Mark) -> None:
    """Warn if a model does not run as its weights were trained.

    A delay that has not begun is often given its state after the weights are loaded, so it is asked at its first step.
    """
    gates = [owner.gate for owner in gated_in(model)]
    for gate in gates:
        gate.loaded = mark
    if not gates:
        _loaded[model] = mark
    begins = all(gate.delay and gate.step == 0 for gate in gates)
    if begins and any(one in delayed or one in awaiting for one in model.modules()):
        return
    values = {float(gate.value) for gate in gates} or {1.0}
    text = warning_of(mark)
    if text and values != {mark["gate"]} and not any(one in awaiting for one in model.modules()):
        warn_user(text)


def check_no_delay(model: nn.Module) -> None:
    """Raise if a model has a delay, is a part of a model with one, or has attention that one holds back."""
    parts = {model, *(owner.module for owner in gated_in(model))}
    if any(one in delayed for one in model.modules()) or any(not parts.isdisjoint(one.modules()) for one in delayed):
        raise ConfigError(f"delay: this {type(model).__name__} has a delay already; call its remove() first")


def check_step(gate: Gate) -> None:
    """Warn at a step of a delay if weights of another delay were loaded without its state."""
    loaded, gate.loaded = gate.loaded, None
    if loaded is not None and loaded["delay"] != gate.delay and loaded["step"] != gate.step:
        warn_user(
            f"delay: the weights that were loaded are of step {loaded['step']} of a delay, and this delay is at step "
            f"{gate.step}; to continue that one, load its state too, with delay.load_state_dict(state)"
        )


def _read(weights: Any) -> tuple[Mark | None, Any]:
    """Return the mark of a `state_dict`, and the `state_dict` without the entry that may hold it."""
    metadata: Mapping[str, Any] = getattr(weights, "_metadata", None) or {}
    mark: Mark | None = next((one[MARK] for one in metadata.values() if MARK in one), None)
    entries = [name for name in weights if isinstance(name, str) and name.startswith(PREFIX)]
    if not entries:
        return mark, weights
    step, gate = weights[entries[0]].tolist()
    weights = type(weights)((name, weight) for name, weight in weights.items() if name not in entries)
    if metadata:
        weights._metadata = metadata
    return {"delay": "", "step": int(step), "gate": gate} if mark is None else mark, weights


def _wrap_loading() -> None:
    original = nn.Module.load_state_dict
    if hasattr(original, "_checks_marks"):
        return

    def load_state_dict(self: nn.Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        mark, weights = _read(state_dict) if isinstance(state_dict, dict) else (None, state_dict)
        result = original(self, weights, *args, **kwargs)
        if mark is None:
            _loaded.pop(self, None)
        else:
            note_loading(self, mark)
        return result

    load_state_dict.__doc__ = original.__doc__
    load_state_dict._checks_marks = True  # type: ignore[attr-defined] (functions take attributes)
    nn.Module.load_state_dict = load_state_dict


_wrap_loading()
