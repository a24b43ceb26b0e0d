"""Search for the softmax attention of a model, with a reason for each mixer that is not matched.

The search matches
- modules with a `role` of "attention" and a `gate`, as in this package's models;
- `torch.nn.MultiheadAttention`;
- Transformers' attention: a class called ...Attention that is causal softmax (`is_causal` is True), checked against
  the configuration's `layer_types`.

Linear attention, delta-rule, state-space and convolution mixers count as recurrences and are not matched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from latebloom.errors import ConfigError, unknown

Where = Callable[[str, nn.Module], bool] | Sequence[str]
"""An override of the search: a predicate on (name, module), or the names themselves."""


@dataclass(frozen=True)
class Found:
    """The result of the search."""

    matched: dict[str, nn.Module]
    """Attention modules, by their path in the model."""
    passed_over: dict[str, str] = field(default_factory=dict)
    """Mixers that were not matched, with the reason."""


def find_attention(model: nn.Module, where: Where | None = None) -> Found:
    """Return the attention of a model; raise if it has none, or no other mixer."""
    if where is not None:
        return _chosen(model, where)
    found = survey(model)
    _check(model, found.matched, found.passed_over)
    return found


def survey(model: nn.Module) -> Found:
    """Return the result of the search for any model, without the checks of `find_attention`."""
    matched: dict[str, nn.Module] = {}
    passed_over: dict[str, str] = {}
    layer_types = _layer_types(model)
    recurrences = [name for name, module in model.named_modules() if getattr(module, "role", None) == "recurrence"]
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in matched):
            continue  # part of a matched attention module
        reason = _classify(name, module, layer_types)
        if reason is None:
            continue
        if reason == "":
            matched[name] = module
        elif not any(name.startswith(f"{part}.") for part in recurrences):
            passed_over[name] = reason
    return Found(matched, passed_over)


def has_gate(module: nn.Module) -> bool:
    """Return whether a module is attention with its own gate."""
    return getattr(module, "role", None) == "attention" and hasattr(module, "gate")


def class_name(module: nn.Module) -> str:
    """Return the name of the class that a user knows: for a part with a role, that of its body."""
    body = getattr(module, "body", None)
    return type(body if hasattr(module, "role") and isinstance(body, nn.Module) else module).__name__


def _classify(name: str, module: nn.Module, layer_types: list[str] | None) -> str | None:
    """Return an empty string for attention, the reason for another mixer, None for any other module."""
    if has_gate(module):
        return ""
    if isinstance(module, nn.MultiheadAttention):
        return ""
    kind = class_name(module)
    if kind.endswith("Attention"):
        if getattr(module, "is_causal", None) is not True:
            return f"{kind} is not causal softmax attention (is_causal is {getattr(module, 'is_causal', 'absent')})"
        layer = _layer_type(name, layer_types)
        if layer is not None and "attention" not in layer and layer != "hybrid":
            return f"{kind} is in a layer of type {layer}"
        if layer == "linear_attention":
            return f"{kind} is in a layer of type {layer}"
        return ""
    if kind.endswith(_MIXERS) or getattr(module, "role", None) == "recurrence" or isinstance(module, nn.RNNBase):
        return f"{kind} is a recurrence or convolution"
    return None


_MIXERS = ("Mixer", "MambaLayer", "DeltaNet", "ShortConv", "RecurrentBlock", "Rglru", "SSM")


def _layer_types(model: nn.Module) -> list[str] | None:
    for module in model.modules():  # the model may be inside a wrapper
        types = getattr(getattr(module, "config", None), "layer_types", None)
        if isinstance(types, list | tuple):
            return list(types)
    return None


def _layer_type(name: str, layer_types: list[str] | None) -> str | None:
    """Return the `layer_types` entry of the layer of a module; the first number in its path is the layer."""
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    if layer_types is None or not numbers or numbers[0] >= len(layer_types):
        return None
    return layer_types[numbers[0]]


def _chosen(model: nn.Module, where: Where) -> Found:
    modules = dict(model.named_modules())
    if callable(where):
        names = [name for name, module in modules.items() if where(name, module)]
        if not names:
            raise ConfigError(f"where: the predicate matches no module of {type(model).__name__}")
    else:
        names = list(where)
        for name in names:
            if name not in modules:
                raise unknown("where", name, [known for known in modules if known])
    return Found({name: modules[name] for name in names})


def _check(model: nn.Module, matched: dict[str, nn.Module], passed_over: dict[str, str]) -> None:
    kind = type(model).__name__
    if not matched:
        seen = "; ".join(f"{name}: {reason}" for name, reason in list(passed_over.items())[:4]) or "no mixer at all"
        raise ConfigError(f"delay: no softmax attention was found in {kind} ({seen}); name it with `where`")
    if not passed_over:
        names = ", ".join(list(matched)[:4])
        raise ConfigError(
            f"delay: everything that mixes tokens in {kind} is attention ({names}, ...), so nothing would be left to "
            "learn while it is held back; if this is intended, name the modules to hold back with `where`"
        )
