"""Operations with a rule for the axis of stacked models.

Model code is written for one model. Under `torch.func.vmap` over the parameters of many, each operation is given a
tensor with a hidden leading axis S. Where torch has no rule for that axis, or a poor one, an operation brings its own:
a second function that is given the axis in the open.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # torch has no public name for the question

from latebloom.kernels.precision import takes_bf16

Operation = Callable[..., Any]


def stackable(single: Operation, stacked: Operation) -> Operation:
    """An operation on tensors that is `single` for one model, and `stacked` for S of them.

    `stacked` is given every tensor with a leading axis S (expanded where the models share it, not copied) and returns
    tensors with that axis. Both are differentiated by torch as they stand. An argument that is None stays None.
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
        if takes_bf16(arguments[0]):  # the library has no such products, so that one model is a stack of one
            outputs = stacked(*(_in_front(argument, None, 1) for argument in arguments))
            return tuple(output[0] for output in outputs) if isinstance(outputs, tuple) else outputs[0]
        return single(*arguments)

    return operation


def is_stacked(argument: Any) -> bool:
    """Whether a tensor hides an axis of stacked models."""
    return isinstance(argument, Tensor) and is_batchedtensor(argument)


def _in_front(argument: Any, dim: int | None, size: int) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)
