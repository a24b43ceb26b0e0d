"""Recognize a softmax: by the name of a function, or by its parts where a model writes it out."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SOFTMAX = ("softmax", "_safe_softmax")
WORDS = ("softmax", "entmax", "sparsemax")
"""Autograd functions with one of these in their name, such as fused ones, are a softmax too."""
WRITTEN_OUT = ("exp", "div", "true_divide", "__truediv__")
"""The last operation of a softmax that is written out, or of one that is normalized again."""
LOG_NORMALIZERS = ("logsumexp", "log_softmax")
_TRANSPARENT = ("Mul", "MaskedFill", "Where", "View", "UnsafeView", "Reshape", "Clone", "ToCopy", "Tril", "Alias")
ORIGINS = ("Exp", "Softmax", "SafeSoftmax")


def softmax_axis(args: Sequence[Any], named: Mapping[str, Any]) -> int:
    """Return the axis of a function that is a softmax by its name; -1 if it is given none."""
    numbers = (value for value in args if isinstance(value, int) and not isinstance(value, bool))
    axis = named.get("dim", next(numbers, -1))
    return axis if isinstance(axis, int) else -1


def normalized_axis(name: str, args: Sequence[Any], output: Any) -> int | None:
    """Return the axis over which an operation has made the weights of a softmax; None if it has not.

    An exponential makes them if their sums are 1: its input has the logarithm of the sum subtracted. A division makes
    them out of exponentials, or of another softmax. A division of other numbers, as in linear attention, does not.
    """
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim < 2 or not output.numel():
        return None
    if name == "exp":
        return next((axis for axis in range(output.ndim) if output.shape[axis] > 1 and _are_one(output, axis)), None)
    above, below = args[0], args[1] if len(args) > 1 else None
    if not (isinstance(above, Tensor) and isinstance(below, Tensor) and above.ndim == below.ndim):
        return None
    axes = [axis for axis in range(above.ndim) if below.shape[axis] == 1 < above.shape[axis]]
    if len(axes) != 1 or bool((output < 0).any()) or not origin_of(above):
        return None
    sums = output.detach().float().sum(axes[0])
    return axes[0] if not bool((sums > 1 + _tolerance(output)).any()) else None


def _are_one(weights: Tensor, axis: int) -> bool:
    sums = weights.detach().float().sum(axis)
    is_one = (sums - 1).abs() < _tolerance(weights)
    return bool(is_one.any()) and bool((is_one | ~sums.isfinite()).all())


def _tolerance(weights: Tensor) -> float:
    return 1e-3 if weights.dtype in (torch.float32, torch.float64) else 3e-2


def origin_of(tensor: Tensor) -> str:
    """Return which of `ORIGINS` a tensor is, masked or scaled number by number; empty if it is none."""
    nodes = [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        name = "" if node is None else node.name().partition("Backward")[0]
        if name in ORIGINS:
            return name
        if node is not None and name in _TRANSPARENT:
            nodes += [above for above, _ in node.next_functions]
    return ""
