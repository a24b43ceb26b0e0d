"""Gates: they enable attention, scale its output, or leave it out.

A gate has one value between two optimizer steps: 1.0 (nothing changes), 0.0 (attention is left out, and not computed if
the module allows it), or a tensor that scales the output.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from latebloom.delay.find import class_name

Value = float | Tensor
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_params", "cache")


class Gate(ABC):
    """The gate of one attention module."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are held back, by their path in the model."""
        return {f"{self.name}.{name}": parameter for name, parameter in self.module.named_parameters()}

    @abstractmethod
    def set(self, value: Value) -> None:
        """Set the value of the gate."""

    def __repr__(self) -> str:
        return f"{self.name}: {class_name(self.module)}"

    def remove(self) -> None:
        """Restore the module."""
        self.set(1.0)


class BuiltInGate(Gate):
    """The gate of a module with a `gate` attribute, as in this package's models: at 0.0 the module returns its input.

    In distributed training the output is scaled by a zero tensor instead: see `_is_distributed`.
    """

    def __init__(self, name: str, module: nn.Module, owner: nn.Module) -> None:
        super().__init__(name, module)
        self._place = _describe_neighbours(module, list(owner.children()))

    def __repr__(self) -> str:
        return super().__repr__() + self._place

    def set(self, value: Value) -> None:
        if isinstance(value, float) and value == 0.0 and _is_distributed():
            value = torch.zeros((), device=next(self.module.parameters()).device)
        self.module.gate = value  # type: ignore[assignment] (nn.Module declares no type for it)


class OutputGate(Gate):
    """The gate of any attention module whose output is added to the residual stream; it replaces `forward`.

    While attention is left out, `forward` returns zeros and computes nothing. There are two exceptions: the first call,
    which shows the form of the output (a tensor, or a tuple with the tensor first), and a call with a cache to fill.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        owner: nn.Module,
        after: "tuple[str, nn.Module] | None" = None,
        checked: bool = True,
    ) -> None:
        super().__init__(name, module)
        self._checked = checked
        self._restore_fast_path = _disable_fast_path(owner)
        self.value: Value = 1.0
        self._form: tuple[int | None, int] | None = None  # (length of the tuple or None, features)
        # A norm between attention and the stream would undo a scale before it.
        self.after = None if after is None else NormGate(*after)
        self._original: Callable[..., Any] = module.forward
        self._restore_forward = replace_forward(module, self._forward)

    def parameters(self) -> dict[str, nn.Parameter]:
        return super().parameters() | ({} if self.after is None else self.after.parameters())

    def __repr__(self) -> str:
        place = "" if self.after is None else f", gated behind {self.after.name}"
        return super().__repr__() + place + ("" if self._checked else " (its place is not checked; give `example`)")

    def set(self, value: Value) -> None:
        self.value = value
        if self.after is not None:
            self.after.set(value)

    def remove(self) -> None:
        self._restore_forward()
        self._restore_fast_path()
        if self.after is not None:
            self.after.remove()

    def _forward(self, *positional: Any, **named: Any) -> Any:
        value = self.value
        if isinstance(value, float) and value == 1.0:
            return self._original(*positional, **named)
        if isinstance(value, float) and value == 0.0:
            if self._form is not None and not any(named.get(cache) is not None for cache in CACHES):
                return self._zeros(_stream(positional, named))
            with torch.no_grad():
                output = self._original(*positional, **named)
            first = output[0] if isinstance(output, tuple) else output
            self._form = (len(output) if isinstance(output, tuple) else None, first.shape[-1])
            zeros = self._tie_to_parameters(torch.zeros_like(first), _stream(positional, named))
            return (zeros, *output[1:]) if isinstance(output, tuple) else zeros
        output = self._original(*positional, **named)
        if self.after is not None:
            return output
        return (output[0] * value, *output[1:]) if isinstance(output, tuple) else output * value

    def _zeros(self, stream: Tensor) -> Any:
        assert self._form is not None
        length, features = self._form
        zeros = self._tie_to_parameters(stream.new_zeros(*stream.shape[:-1], features), stream)
        return zeros if length is None else (zeros, *[None] * (length - 1))

    def _tie_to_parameters(self, zeros: Tensor, stream: Tensor) -> Tensor:
        """Return zeros that depend on all parameters that are held back: see `_is_distributed`."""
        if not (torch.is_grad_enabled() and _is_distributed()):
            return zeros
        ties = [parameter.reshape(-1)[:1].sum() for parameter in self.parameters().values()]
        return zeros + 0.0 * (torch.stack(ties).sum() + stream.sum()).to(zeros.dtype)


class NormGate(Gate):
    """The gate of a norm between attention and the stream in a post-norm block: scaled after the norm, or left out."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.value: Value = 1.0
        self._original: Callable[..., Any] = module.forward
        self._restore_forward = replace_forward(module, self._forward)

    def set(self, value: Value) -> None:
        self.value = value

    def remove(self) -> None:
        self._restore_forward()

    def _forward(self, x: Tensor, *positional: Any, **named: Any) -> Tensor:
        if isinstance(self.value, float):
            return self._original(x, *positional, **named) if self.value == 1.0 else x
        return self._original(x, *positional, **named) * self.value


def _describe_neighbours(module: nn.Module, parts: list[nn.Module]) -> str:
    """Return a text with the roles of the parts before and after a part of a block."""
    place = next(i for i, part in enumerate(parts) if part is module)
    before, after = (
        [f"the {part.role}" for part in found if hasattr(part, "role")]
        for found in (parts[max(0, place - 1) : place], parts[place + 1 : place + 2])
    )
    if before and after:
        return f", between {before[0]} and {after[0]}"
    return f", behind {before[0]}" if before else f", before {after[0]}" if after else ""


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
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


def _disable_fast_path(owner: nn.Module) -> Callable[[], None]:
    """Disable the fused inference path of torch's encoder layer, which never calls its attention module.

    The layer uses that path only for activations that it knows. Return a function that enables it again.
    """
    if not isinstance(owner, nn.TransformerEncoderLayer):
        return lambda: None
    known = owner.activation_relu_or_gelu
    owner.activation_relu_or_gelu = 0

    def restore() -> None:
        owner.activation_relu_or_gelu = known

    return restore


def _stream(positional: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """Return the input tensor of an attention call: the first positional or named tensor."""
    for candidate in (*positional, *(named.get(name) for name in ("hidden_states", "query", "x", "inputs"))):
        if isinstance(candidate, Tensor):
            return candidate
    return next(value for value in named.values() if isinstance(value, Tensor))
