"""Gates: they enable attention, scale its output, or leave it out.

A gate has one value between two optimizer steps: 1.0 (nothing changes), 0.0 (attention is left out, and not computed if
the module allows it), or a tensor that scales the output.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from latebloom.delay.find import class_name, example_of, has_gate
from latebloom.delay.place import find_norm_after

Value = float | Tensor


class Gate(ABC):
    """The gate of one attention module."""

    place: str
    """Where it is, in words."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.held = {name: module}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are held back, by their path in the model."""
        return {f"{path}.{name}": p for path, module in self.held.items() for name, p in module.named_parameters()}

    @abstractmethod
    def set(self, value: Value) -> None:
        """Set the value of the gate."""

    @abstractmethod
    def remove(self) -> None:
        """Restore the module."""

    def __repr__(self) -> str:
        return f"{self.name}: {class_name(self.module)}{self.place}"


class BuiltInGate(Gate):
    """The gate of a module with a `gate` attribute, as in this package's models: at 0.0 the module returns its input.

    In distributed training the output is scaled by a zero tensor instead: see `_is_distributed`.
    """

    def __init__(self, name: str, module: nn.Module, owner: nn.Module) -> None:
        super().__init__(name, module)
        parts = [None, *owner.children(), None]
        at = parts.index(module)
        before, after = (getattr(part, "role", None) for part in (parts[at - 1], parts[at + 1]))
        if before and after:
            self.place = f", between the {before} and the {after}"
        else:
            self.place = f", behind the {before}" if before else f", before the {after}" if after else ""

    def set(self, value: Value) -> None:
        if isinstance(value, float) and value == 0.0 and _is_distributed():
            value = torch.zeros((), device=next(self.module.parameters()).device)
        self.module.gate = value  # type: ignore[assignment] (nn.Module declares no type for it)

    def remove(self) -> None:
        self.set(1.0)


class Form(NamedTuple):
    """The form of an attention module's call."""

    stream: int | str
    """The position or name of the argument that has the output's shape, except for the features."""
    features: int
    outputs: int | None
    """The length of the tuple that is returned, with the tensor first; None if it is the tensor itself."""


class OutputGate(Gate):
    """The gate of any attention module whose output is added to the residual stream; it replaces `forward`.

    While attention is left out, `forward` returns zeros and computes nothing. There are two exceptions: the first call,
    which shows its form, and a call with a cache to fill.

    If a norm is between attention and the stream, which would undo a scale before it, the gate is after the norm.
    """

    def __init__(self, name: str, module: nn.Module, norm: tuple[str, nn.Module] | None, checked: bool) -> None:
        super().__init__(name, module)
        self.place = "" if checked else " (its place is not checked; give `example`)"
        self.value: Value = 1.0
        self._form: Form | None = None
        self._original: Callable[..., Any] = module.forward
        self._restore = [_replace_forward(module, self._forward)]
        # Without a hook torch's encoder layer has a fused inference path, which never calls its attention module.
        self._restore.append(module.register_forward_pre_hook(lambda *_: None).remove)
        self._has_norm = norm is not None
        if norm is not None:
            self.place = f", gated behind {norm[0]}"
            self.held[norm[0]] = norm[1]
            self._norm_original: Callable[..., Any] = norm[1].forward
            self._restore.append(_replace_forward(norm[1], self._norm_forward))

    def set(self, value: Value) -> None:
        self.value = value

    def remove(self) -> None:
        for restore in self._restore:
            restore()

    def _forward(self, *positional: Any, **named: Any) -> Any:
        if isinstance(self.value, float) and self.value == 0.0:
            return self._left_out(positional, named)
        output = self._original(*positional, **named)
        if isinstance(self.value, float) or self._has_norm:
            return output
        return (output[0] * self.value, *output[1:]) if isinstance(output, tuple) else output * self.value

    def _norm_forward(self, x: Tensor, *positional: Any, **named: Any) -> Tensor:
        if isinstance(self.value, float) and self.value == 0.0:
            return x
        output = self._norm_original(x, *positional, **named)
        return output if isinstance(self.value, float) else output * self.value

    def _left_out(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        arguments = {**dict(enumerate(positional)), **named}
        if self._form is not None and self._form.stream in arguments and not any(map(_is_cache, named.items())):
            stream, features, outputs = arguments[self._form.stream], self._form.features, self._form.outputs
            zeros = self._tie_to_parameters(stream.new_zeros(*stream.shape[:-1], features), arguments)
            return zeros if outputs is None else (zeros, *[None] * (outputs - 1))
        with torch.no_grad():
            output = self._original(*positional, **named)
        first = output[0] if isinstance(output, tuple) else output
        for key, value in arguments.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:-1] == first.shape[:-1]:
                self._form = Form(key, first.shape[-1], len(output) if isinstance(output, tuple) else None)
                break
        zeros = self._tie_to_parameters(torch.zeros_like(first), arguments)
        return (zeros, *output[1:]) if isinstance(output, tuple) else zeros

    def _tie_to_parameters(self, zeros: Tensor, arguments: dict[int | str, Any]) -> Tensor:
        """Return zeros that depend on all parameters that are held back and on the input: see `_is_distributed`."""
        if not (torch.is_grad_enabled() and _is_distributed()):
            return zeros
        inputs = [value for value in arguments.values() if isinstance(value, Tensor) and value.requires_grad]
        ties = [parameter.reshape(-1)[:1].sum() for parameter in self.parameters().values()]
        return zeros + 0.0 * (torch.stack(ties).sum() + sum(value.sum() for value in inputs)).to(zeros.dtype)


def build_gates(model: nn.Module, matched: dict[str, nn.Module], example: Mapping[str, Any] | None) -> list[Gate]:
    """Return a gate for each attention module, at its output or after the norm behind it."""
    norms: dict[str, tuple[str, nn.Module] | None] = {}
    for name, module in matched.items():  # find all places before any forward is replaced
        if not has_gate(module):
            root, known = ("", example) if example is not None else _known_example(model, name)
            if known is not None:
                norms[name] = find_norm_after(model.get_submodule(root), name.removeprefix(f"{root}."), module, known)
    gates: list[Gate] = []
    for name, module in matched.items():
        owner, norm = name.rpartition(".")[0], norms.get(name)
        if has_gate(module):
            gates.append(BuiltInGate(name, module, model.get_submodule(owner)))
        else:
            norm = None if norm is None else (f"{owner}.{norm[0]}".lstrip("."), norm[1])
            gates.append(OutputGate(name, module, norm, checked=name in norms))
    return gates


def _known_example(model: nn.Module, name: str) -> tuple[str, dict[str, Any] | None]:
    """Return the path and example of the outermost module around another that has one; the model may be wrapped."""
    parts = name.split(".")
    roots = (".".join(parts[:depth]) for depth in range(len(parts)))
    examples = ((root, example_of(model.get_submodule(root))) for root in roots)
    return next((found for found in examples if found[1] is not None), ("", None))


def _is_cache(argument: tuple[str, Any]) -> bool:
    name, value = argument
    return ("cache" in name or "past" in name) and value is not None and not isinstance(value, bool | Tensor)


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Replace the `forward` of a module; return a function that restores it."""
    own = module.__dict__.get("forward")
    module.forward = forward

    def restore() -> None:
        if own is None:
            del module.forward
        else:
            module.forward = own

    return restore


def _is_distributed() -> bool:
    """Return whether several processes train together.

    DistributedDataParallel waits for the gradient of every parameter in every step. Attention that is held back has
    zero gradients there, which are dropped before the optimizer step.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
