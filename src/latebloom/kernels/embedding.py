"""Rows of a table by number, as an operation whose gradient is added up in a fixed order.

On a GPU the library promises no order in which it adds the gradients of a row that is looked up many times, and another
order is another rounding.

Shapes: S stacked models, V rows of a model's table, D width; dots stand for any axes in between.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.kernels.stacking import stackable


def _single(numbers: Tensor, table: Tensor) -> Tensor:
    if _takes_kernel(table):
        return _FixedOrder.apply(numbers[None], table[None])[0]
    return F.embedding(numbers, table)


def stacked_embed(numbers: Tensor, table: Tensor) -> Tensor:
    """numbers (S, ...), table (S, V, D) -> (S, ..., D)."""
    if _takes_kernel(table):
        return _FixedOrder.apply(numbers, table)
    models, rows, _ = table.shape
    first = rows * torch.arange(models, device=table.device).view(-1, *(1 for _ in numbers.shape[1:]))
    return F.embedding(numbers + first, table.flatten(0, 1))


def _takes_kernel(table: Tensor) -> bool:
    return table.is_cuda and table.dtype == torch.float32


embed = stackable(_single, stacked_embed)
"""numbers (...) from 0 to V - 1, table (V, D) -> (..., D)."""


class _FixedOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: Tensor, table: Tensor) -> Tensor:
        ctx.rows = table.shape[1]
        ctx.save_for_backward(numbers)
        models = torch.arange(len(table), device=table.device).view(-1, *(1 for _ in numbers.shape[1:]))
        return table[models, numbers]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.kernels import embedding_triton

        (numbers,) = ctx.saved_tensors
        return None, embedding_triton.backward(numbers.contiguous(), grads[0].contiguous(), ctx.rows)
