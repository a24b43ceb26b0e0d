"""Tensors in the memory order that the fused kernels take."""

from torch import Tensor


def rows(x: Tensor) -> Tensor:
    """(..., channels) -> (rows, channels), copied only where the rows are not evenly spaced in memory."""
    found = x.flatten(0, -2)
    return found if found.stride(1) == 1 else found.contiguous()


def dense(x: Tensor) -> Tensor:
    """Return parameters (S, ...) of models that may stand apart, each of them contiguous."""
    return x if x[0].is_contiguous() else x.contiguous()
