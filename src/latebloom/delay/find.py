"""Search for the softmax attention of a model, with a reason for each mixer that is not matched.

This module knows the parts of this package's models, which have a `role`, and torch's own layers. The models of another
library are known to the module of `latebloom.integrations` that is named after it; see `libraries_of`.

Linear attention, delta-rule, state-space and convolution mixers count as recurrences and are not matched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from latebloom.errors import ConfigError, unknown

Where = Callable[[str, nn.Module], bool] | Sequence[str]
"""An override of the search: a predicate on (name, module), or the names themselves."""


@dataclass(frozen=True)
class Found:
    """The result of the search."""

    matched: dict[str, nn.Module] = field(default_factory=dict)
    """Attention modules, by their path in the model."""
    passed_over: dict[str, str] = field(default_factory=dict)
    """Mixers that were not matched, with the reason."""


def find_attention(model: nn.Module, where: Where | None = None) -> Found:
    """Return the attention of a model; raise if it has none, or no other mixer."""
    if where is not None:
        return Found(_chosen(model, where))
    found, kind = survey(model), type(model).__name__
    if not found.matched:
        seen = [f"{name}: {reason}" for name, reason in found.passed_over.items()][:4] or ["no mixer at all"]
        raise ConfigError(f"delay: no softmax attention was found in {kind} ({'; '.join(seen)}); name it with `where`")
    if not found.passed_over:
        names = ", ".join(list(found.matched)[:4])
        raise ConfigError(
            f"delay: everything that mixes tokens in {kind} is attention ({names}, ...), so nothing would be left to "
            "learn while it is held back; if this is intended, name the modules to hold back with `where`"
        )
    return found


def survey(model: nn.Module) -> Found:
    """Return the result of the search for any model, without the checks of `find_attention`."""
    found, libraries = Found(), libraries_of(model)
    closed: tuple[str, ...] = ()  # the inside of attention, and of what is declared to be a recurrence
    for name, module in model.named_modules():
        reason = None if name.startswith(closed) else _classify(model, name, module, libraries)
        if reason == "":
            found.matched[name] = module
        elif reason is not None:
            found.passed_over[name] = reason
        if reason == "" or _role(module) == "recurrence":
            closed += (f"{name}.",)
    return found


def libraries_of(model: nn.Module) -> list[Any]:
    """Return what is known of the libraries that a model's classes come from.

    The module `latebloom.integrations.NAME_models` is for the library NAME, and has two functions:
    - `classify(model, name, module)` returns an empty string for softmax attention, the reason for another mixer, and
      None for any other module;
    - `example_of(model)` returns the arguments of a small forward pass by name, or None for what is no whole model.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    libraries = sorted({kind.__module__.partition(".")[0] for kind in kinds})
    names = [f"latebloom.integrations.{library}_models" for library in libraries]
    return [import_module(name) for name in names if find_spec(name) is not None]


def example_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of a small forward pass if a library knows them; None otherwise."""
    examples = (library.example_of(model) for library in libraries_of(model))
    return next((example for example in examples if example is not None), None)


def has_gate(module: nn.Module) -> bool:
    """Return whether a module is attention with its own gate."""
    return _role(module) == "attention" and hasattr(module, "gate")


def class_name(module: nn.Module) -> str:
    """Return the name of the class that a user knows: for a part with a role, that of its body."""
    body = getattr(module, "body", None)
    return type(body if _role(module) is not None and isinstance(body, nn.Module) else module).__name__


def _role(module: nn.Module) -> Any:
    return getattr(module, "role", None)


def _classify(model: nn.Module, name: str, module: nn.Module, libraries: list[Any]) -> str | None:
    if has_gate(module) or isinstance(module, nn.MultiheadAttention):
        return ""
    if _role(module) == "recurrence" or isinstance(module, nn.RNNBase):
        return f"{class_name(module)} is a recurrence or convolution"
    reasons = (library.classify(model, name, module) for library in libraries)
    return next((reason for reason in reasons if reason is not None), None)


def _chosen(model: nn.Module, where: Where) -> dict[str, nn.Module]:
    modules = dict(model.named_modules())
    if not callable(where):
        for name in where:
            if name not in modules:
                raise unknown("where", name, [known for known in modules if known])
        return {name: modules[name] for name in where}
    chosen = {name: module for name, module in modules.items() if where(name, module)}
    if not chosen:
        raise ConfigError(f"where: the predicate matches no module of {type(model).__name__}")
    return chosen
