"""Operations with a batching rule for the axis of stacked models.

Model code is written for one model. Under `torch.func.vmap` over the parameters of many, each operation is given
tensors with a hidden leading axis S. Where torch has no batching rule for an operation, or a slow one, the operation
brings its own: a second function that is given tensors with the axis in the open.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor  # torch has no public names for these questions
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from latebloom.layers.precision import takes_bf16

Operation = Callable[..., Any]
Stacking = Literal["vmap", "loop", "none"]
"""How a component runs in a stack of models: `vmap` if torch has a batching rule for each of its operations or they
are `stackable`, `loop` if it is called once per model, `none` if runs with it are never stacked."""


def stackable(single: Operation, stacked: Operation) -> Operation:
    """Return an operation on tensors that is `single` for one model, and `stacked` for S of them.

    `stacked` is given every tensor with a leading axis S (expanded where the models share it, not copied) and returns
    tensors with that axis. torch differentiates both as they stand. An argument that is None stays None.
    """

    class Stacked(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            raise AssertionError("reached only under vmap, which takes the rule below")

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

        @staticmethod
        def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
            in_front = [
                _in_front(argument, dim, info.batch_size) for argument, dim in zip(arguments, in_dims, strict=True)
            ]
            outputs = stacked(*in_front)
            return outputs, (0,) * len(outputs) if isinstance(outputs, tuple) else 0

    def operation(*arguments: Any) -> Any:
        if any(is_stacked(argument) for argument in arguments):
            return Stacked.apply(*arguments)
        if takes_bf16(arguments[0]):  # the library has no such products, so one model is computed as a stack of one
            outputs = stacked(*(_in_front(argument, None, 1) for argument in arguments))
            return tuple(output[0] for output in outputs) if isinstance(outputs, tuple) else outputs[0]
        return single(*arguments)

    return operation


def call_per_model(module: nn.Module, *inputs: Any, **named: Any) -> Any:
    """Call a module; in a stack, once for each model with that model's parameters and inputs.

    This works for every module, at the speed of a loop. Inputs and outputs may be nested tuples, lists and dicts.
    """
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    flat, structure = tree_flatten((tensors, inputs, named))
    if not any(is_stacked(argument) for argument in flat):
        return module(*inputs, **named)
    structures = []

    def one_model(*arguments: Any) -> list[Any]:
        tensors, inputs, named = tree_unflatten(list(arguments), structure)
        outputs, found = tree_flatten(functional_call(module, tensors, inputs, named))
        structures.append(found)
        return outputs

    def each_model(*arguments: Any) -> tuple[Tensor, ...]:
        models = next(len(argument) for argument in arguments if isinstance(argument, Tensor))
        rows = [
            one_model(*(argument[i] if isinstance(argument, Tensor) else argument for argument in arguments))
            for i in range(models)
        ]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    outputs = stackable(one_model, each_model)(*flat)
    return tree_unflatten(list(outputs), structures[0])


def is_stacked(argument: Any) -> bool:
    """Return whether a tensor hides an axis of stacked models."""
    return isinstance(argument, Tensor) and is_batchedtensor(argument)


def stacked_size(tensor: Tensor) -> int:
    """Return the number of elements of a tensor, over all stacked models."""
    while is_batchedtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.numel()


def _in_front(argument: Any, dim: int | None, size: int) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)
