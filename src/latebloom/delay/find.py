"""Where softmax attention stands in a model, and why each candidate was matched or not.

Matched are
- parts that say so themselves: a `role` of "attention" and a `gate`, as in this package's models;
- `torch.nn.MultiheadAttention`;
- Transformers' attention: a class called ...Attention that is causal softmax (`is_causal` is True), checked against
  the configuration's `layer_types`.

Linear attention, delta-rule, state-space and convolution mixers are recurrences here, and are not matched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from latebloom.errors import ConfigError, unknown

Where = Callable[[str, nn.Module], bool] | Sequence[str]
"""An override of the search: a predicate on (name, module), or the names themselves."""


@dataclass(frozen=True)
class Found:
    """What the search saw in a model."""

    matched: dict[str, nn.Module]
    """Attention, by its path in the model."""
    passed_over: dict[str, str] = field(default_factory=dict)
    """Mixers that were not matched, and why."""


def find_attention(model: nn.Module, where: Where | None = None) -> Found:
    """The attention of a model; an error if there is none, or nothing else."""
    if where is not None:
        return _chosen(model, where)
    found = survey(model)
    _check(model, found.matched, found.passed_over)
    return found


def survey(model: nn.Module) -> Found:
    """What the search sees in any model, also in one that has no attention, or nothing else."""
    matched: dict[str, nn.Module] = {}
    passed_over: dict[str, str] = {}
    layer_types = _layer_types(model)
    own_recurrences = [name for name, module in model.named_modules() if getattr(module, "role", None) == "recurrence"]
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in matched):
            continue  # part of an attention that is matched already
        verdict = _judge(name, module, layer_types)
        if verdict is None:
            continue
        if verdict == "":
            matched[name] = module
        elif not any(name.startswith(f"{part}.") for part in own_recurrences):
            passed_over[name] = verdict
    return Found(matched, passed_over)


def is_own(module: nn.Module) -> bool:
    """A part that can be held back by a gate of its own."""
    return getattr(module, "role", None) == "attention" and hasattr(module, "gate")


def class_name(module: nn.Module) -> str:
    """The class that a user knows a part by: in a part with a role, that of its body behind the norm."""
    body = getattr(module, "body", None)
    return type(body if hasattr(module, "role") and isinstance(body, nn.Module) else module).__name__


def _judge(name: str, module: nn.Module, layer_types: list[str] | None) -> str | None:
    """ "" for attention, a reason for a mixer that is none, None for anything else."""
    if is_own(module):
        return ""
    if isinstance(module, nn.MultiheadAttention):
        return ""
    kind = class_name(module)
    if kind.endswith("Attention"):
        if getattr(module, "is_causal", None) is not True:
            return f"{kind} is not causal softmax attention (is_causal is {getattr(module, 'is_causal', 'absent')})"
        layer = _layer_type(name, layer_types)
        if layer is not None and "attention" not in layer and layer != "hybrid":
            return f"{kind} stands in a layer that the configuration calls {layer}"
        if layer == "linear_attention":
            return f"{kind} stands in a layer that the configuration calls {layer}"
        return ""
    if kind.endswith(_MIXERS) or getattr(module, "role", None) == "recurrence" or isinstance(module, nn.RNNBase):
        return f"{kind} is a recurrence or convolution"
    return None


_MIXERS = ("Mixer", "MambaLayer", "DeltaNet", "ShortConv", "RecurrentBlock", "Rglru", "SSM")


def _layer_types(model: nn.Module) -> list[str] | None:
    for module in model.modules():  # the model may stand in a wrapper
        types = getattr(getattr(module, "config", None), "layer_types", None)
        if isinstance(types, list | tuple):
            return list(types)
    return None


def _layer_type(name: str, layer_types: list[str] | None) -> str | None:
    """The configuration's word for the layer that a module stands in: the first number in its path counts layers."""
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
            "learn from while it is held back; name what to hold back with `where` if that is meant"
        )
