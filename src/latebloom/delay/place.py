"""The place of a gate, found by calling the layer with the output of attention replaced.

There are three kinds of layers:
- The output of attention is added to the residual stream: the gate is at this output.
- A norm is between the output and the stream, so that half the output has the same effect: the gate is after the norm.
- Without attention, the layer's output does not depend on its input: attention has no residual path, and leaving it out
  would cut the stream. Such a model is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.delay.gate import replace_forward
from latebloom.errors import ConfigError


def find_norm_after(
    model: nn.Module, name: str, attention: nn.Module, example: Mapping[str, Any]
) -> tuple[str, nn.Module] | None:
    """Return the norm between attention and the stream, or None; raise if there is no residual path."""
    owner_name = name.rpartition(".")[0]
    owner = model.get_submodule(owner_name)
    call = _record_call(model, owner, attention, example)
    if call is None:
        return None  # the example does not reach this layer: assume no norm
    positional, named, output = call
    first = output[0] if isinstance(output, tuple) else output
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(first)

    def layer(attended: Tensor, other_input: bool = False) -> Tensor:
        moved, kept = list(positional), dict(named)
        if other_input and positional:
            moved[0] = _changed(positional[0])
        elif other_input:
            tensors = [key for key, value in named.items() if isinstance(value, Tensor)]
            key = next((key for key in tensors if named[key].is_floating_point()), tensors[0])
            kept[key] = _changed(named[key])
        with _output_replaced(attention, (attended, *output[1:]) if isinstance(output, tuple) else attended):
            result = owner(*moved, **kept)
        return (result[0] if isinstance(result, tuple) else result).detach()

    with torch.no_grad():
        nothing = layer(torch.zeros_like(noise))
        whole, half = layer(noise), layer(noise / 2)
        moved = layer(torch.zeros_like(noise), other_input=True)
    if torch.allclose(nothing, moved):
        raise ConfigError(
            f"delay: {name} ({type(attention).__name__}) has no residual path of its own in {type(owner).__name__}: "
            "without it the layer's output does not depend on its input, so leaving attention out would cut the "
            "stream; hold back something else with `where`"
        )
    if not torch.allclose(whole, half, atol=1e-3, rtol=1e-3):
        return None
    norm = _first_reader(owner, attention, lambda: layer(noise))
    if norm is None:
        raise ConfigError(
            f"delay: the scale of the output of {name} has no effect in {type(owner).__name__}, and there is no norm "
            "after it for a gate; hold back something else with `where`"
        )
    inner, module = norm
    return f"{owner_name}.{inner}" if owner_name else inner, module


def _changed(value: Tensor) -> Tensor:
    """Return another input of the same kind: features plus one, or tokens in reverse order."""
    return value + 1.0 if value.is_floating_point() else value.flip(-1)


def _record_call(
    model: nn.Module, owner: nn.Module, attention: nn.Module, example: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any] | None:
    """Return the arguments of the layer and the output of attention in a pass over the example."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    outputs: list[Any] = []
    handles = [
        owner.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True),
        attention.register_forward_hook(lambda _, args, output: outputs.append(output)),
    ]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            model(**example)
    finally:
        for module, training in modes.items():
            module.training = training
        for handle in handles:
            handle.remove()
    return (*calls[0], outputs[0]) if calls and outputs else None


@contextmanager
def _output_replaced(module: nn.Module, output: Any) -> Iterator[None]:
    restore = replace_forward(module, lambda *positional, **named: output)
    try:
        yield
    finally:
        restore()


def _first_reader(owner: nn.Module, attention: nn.Module, call: Callable[[], Any]) -> tuple[str, nn.Module] | None:
    """Return the first child of a layer whose input is the output of attention."""
    outputs: list[Tensor] = []
    readers: list[tuple[str, nn.Module]] = []

    def record_output(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    def record_readers(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and any(args[0] is output for output in outputs):
                readers.append((name, module))

        return hook

    handles = [attention.register_forward_hook(record_output)]
    handles += [m.register_forward_pre_hook(record_readers(n)) for n, m in owner.named_children() if m is not attention]
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return readers[0] if readers else None
