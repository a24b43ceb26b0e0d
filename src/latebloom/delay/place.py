"""The place of a gate, found by calling the layer with the output of attention replaced.

There are three kinds of layers:
- The output of attention is added to the residual stream: the gate is at this output.
- A norm is between the output and the stream, so that half the output has the same effect: the gate is after the norm.
- Without attention, the layer's output does not depend on its input: attention has no residual path, and leaving it out
  would cut the stream. Such a model is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.errors import ConfigError


def find_norm_after(
    model: nn.Module, name: str, attention: nn.Module, example: Mapping[str, Any]
) -> tuple[str, nn.Module] | None:
    """Return the norm between attention and the stream, by its name in the layer, or None.

    Raise if there is no residual path.
    """
    _check_example(model, example)
    owner = model.get_submodule(name.rpartition(".")[0])
    with _evaluating(model):
        call = _record_call(model, owner, attention, example)
        if call is None:
            return None  # the example does not reach this layer: assume no norm
        positional, named, output = call
        first = output[0] if isinstance(output, tuple) else output
        noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(first)

        def layer(attended: Tensor, positional: Any = positional, named: Any = named) -> Tensor:
            replaced = (attended, *output[1:]) if isinstance(output, tuple) else attended
            with attention.register_forward_hook(lambda *_: replaced):
                result = owner(*positional, **named)
            return result[0] if isinstance(result, tuple) else result

        zeros = torch.zeros_like(noise)
        if torch.allclose(layer(zeros), layer(zeros, *_other_input(positional, named))):
            raise ConfigError(
                f"delay: {name} ({type(attention).__name__}) has no residual path of its own in "
                f"{type(owner).__name__}: without it the layer's output does not depend on its input, so leaving "
                "attention out would cut the stream; hold back something else with `where`"
            )
        if not torch.allclose(layer(noise), layer(noise / 2), atol=1e-3, rtol=1e-3):
            return None
        norm = _first_reader(owner, noise, lambda: layer(noise))
    if norm is None:
        raise ConfigError(
            f"delay: the scale of the output of {name} has no effect in {type(owner).__name__}, and there is no norm "
            "after it for a gate; hold back something else with `where`"
        )
    return norm


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Put a model into eval mode, without gradients, while the context lasts."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            yield model.eval()
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check_example(model: nn.Module, example: Mapping[str, Any]) -> None:
    """Raise if the model cannot be called with the example."""
    arguments = signature(model.forward)
    try:
        arguments.bind(**example)
    except TypeError as error:
        first = next(iter(arguments.parameters), "tokens")
        given = str(error) if isinstance(example, Mapping) else f"a {type(example).__name__} is not possible"
        raise ConfigError(
            f"example: {given}; it must be a dict with the arguments of one small forward pass of "
            f"{type(model).__name__} by name, such as {{{first!r}: ...}}"
        ) from None


def _record_call(
    model: nn.Module, owner: nn.Module, attention: nn.Module, example: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any] | None:
    """Return the arguments of the layer and the output of attention in a pass over the example."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    outputs: list[Any] = []
    with (
        owner.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True),
        attention.register_forward_hook(lambda _, args, output: outputs.append(output)),
    ):
        model(**example)
    return (*calls[0], outputs[0]) if calls and outputs else None


def _other_input(positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with another input: features or tokens in reverse order."""
    if positional:
        return (positional[0].flip(-1), *positional[1:]), named
    tensors = {key: value for key, value in named.items() if isinstance(value, Tensor)}
    key = min(tensors, key=lambda key: not tensors[key].is_floating_point())  # the first with features, if there is one
    return positional, named | {key: tensors[key].flip(-1)}


def _first_reader(owner: nn.Module, value: Tensor, call: Callable[[], Any]) -> tuple[str, nn.Module] | None:
    """Return the first child of a layer whose input is this tensor."""
    readers: list[tuple[str, nn.Module]] = []

    def record(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and args[0] is value:
            readers.append((name, module))

    with ExitStack() as hooks:
        for name, child in owner.named_children():
            hooks.enter_context(child.register_forward_pre_hook(partial(record, name)))
        call()
    return readers[0] if readers else None
