"""Gates: the places where attention is let in, scaled, or left out.

A gate has one value for the time between two optimizer steps: 1.0 (open: nothing is touched), 0.0 (left out, and not
computed where the module allows it), or a tensor that scales.
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
    """One place where attention enters the stream."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is held back here, by its path in the model."""
        return {f"{self.name}.{name}": parameter for name, parameter in self.module.named_parameters()}

    @abstractmethod
    def set(self, value: Value) -> None: ...

    def __repr__(self) -> str:
        return f"{self.name}: {class_name(self.module)}"

    def remove(self) -> None:
        """Leave the module as it was found."""
        self.set(1.0)


class OwnGate(Gate):
    """A part that has a `gate` of its own, as this package's models do: at 0.0 it returns its input untouched.

    Between processes it is closed by a zero that scales instead: see `_between_processes`.
    """

    def __init__(self, name: str, module: nn.Module, owner: nn.Module) -> None:
        super().__init__(name, module)
        self._place = _neighbours(module, list(owner.children()))

    def __repr__(self) -> str:
        return super().__repr__() + self._place

    def set(self, value: Value) -> None:
        if isinstance(value, float) and value == 0.0 and _between_processes():
            value = torch.zeros((), device=next(self.module.parameters()).device)
        self.module.gate = value  # type: ignore[assignment] (a module declares no type for it)


class OutputGate(Gate):
    """Any attention module whose output is added to the stream: its `forward` is replaced while the gate stands.

    While it is left out, zeros of the right form are returned and nothing is computed. Two cases still compute: the
    first call, which shows the form of the output (a tensor, or a tuple with the tensor first), and a call with a
    cache, which must be filled whatever becomes of the output.
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
        self._restore_fast_path = _leave_fast_path(owner)
        self.value: Value = 1.0
        self._form: tuple[int | None, int] | None = None  # (length of the tuple or None, features)
        # Where a norm stands between attention and the stream, scaling before it would be undone by it.
        self.after = None if after is None else NormGate(*after)
        self._original: Callable[..., Any] = module.forward
        self._restore_forward = replace_forward(module, self._forward)

    def parameters(self) -> dict[str, nn.Parameter]:
        return super().parameters() | ({} if self.after is None else self.after.parameters())

    def __repr__(self) -> str:
        place = "" if self.after is None else f", gated behind {self.after.name}"
        return super().__repr__() + place + ("" if self._checked else " (its place is not checked: give `example`)")

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
            zeros = self._tied(torch.zeros_like(first), _stream(positional, named))
            return (zeros, *output[1:]) if isinstance(output, tuple) else zeros
        output = self._original(*positional, **named)
        if self.after is not None:
            return output
        return (output[0] * value, *output[1:]) if isinstance(output, tuple) else output * value

    def _zeros(self, stream: Tensor) -> Any:
        assert self._form is not None
        length, features = self._form
        zeros = self._tied(stream.new_zeros(*stream.shape[:-1], features), stream)
        return zeros if length is None else (zeros, *[None] * (length - 1))

    def _tied(self, zeros: Tensor, stream: Tensor) -> Tensor:
        """Zeros that depend, without effect, on everything that is held back: see `_between_processes`."""
        if not (torch.is_grad_enabled() and _between_processes()):
            return zeros
        ties = [parameter.reshape(-1)[:1].sum() for parameter in self.parameters().values()]
        return zeros + 0.0 * (torch.stack(ties).sum() + stream.sum()).to(zeros.dtype)


class NormGate(Gate):
    """The norm between attention and the stream in a post-norm block: scaled behind it, left out with it."""

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


def _neighbours(module: nn.Module, parts: list[nn.Module]) -> str:
    """Where a part stands in its block, in words, as far as its neighbours say what they are."""
    place = next(i for i, part in enumerate(parts) if part is module)
    before, after = (
        [f"the {part.role}" for part in found if hasattr(part, "role")]
        for found in (parts[max(0, place - 1) : place], parts[place + 1 : place + 2])
    )
    if before and after:
        return f", between {before[0]} and {after[0]}"
    return f", behind {before[0]}" if before else f", before {after[0]}" if after else ""


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Give one module another `forward`; returns what gives it back the one it had, its class's or its own."""
    own = module.__dict__.get("forward")
    module.forward = forward

    def restore() -> None:
        if own is None:
            del module.forward
        else:
            module.forward = own

    return restore


def _between_processes() -> bool:
    """Whether this process trains with others.

    DistributedDataParallel waits for the gradient of every parameter in every step, so what is held back takes part
    there with gradients of zero; they are dropped before the optimizer sees them.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _leave_fast_path(owner: nn.Module) -> Callable[[], None]:
    """Torch's encoder layer has a fused path for inference that never calls its attention module; close it.

    The layer takes the path only for activations that it knows; told that it does not know its own, it takes the
    ordinary one. Returns what opens it again.
    """
    if not isinstance(owner, nn.TransformerEncoderLayer):
        return lambda: None
    known = owner.activation_relu_or_gelu
    owner.activation_relu_or_gelu = 0

    def restore() -> None:
        owner.activation_relu_or_gelu = known

    return restore


def _stream(positional: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """The tensor that attention was called with: the first argument, by place or by name."""
    for candidate in (*positional, *(named.get(name) for name in ("hidden_states", "query", "x", "inputs"))):
        if isinstance(candidate, Tensor):
            return candidate
    return next(value for value in named.values() if isinstance(value, Tensor))
