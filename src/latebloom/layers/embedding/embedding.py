"""Embedding: the operation and the module. Its gradient is summed in a fixed order.

On a GPU the library sums the gradients of a row that is looked up several times in no fixed order, and rounding depends
on the order.

Shapes: S stacked models, V rows of a model's table, D width; dots stand for any axes in between.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.layers.memory_order import dense
from latebloom.layers.stacking import stackable


def _single(numbers: Tensor, table: Tensor) -> Tensor:
    if _takes_kernel(table):
        return _FixedOrder.apply(numbers[None], table[None]).squeeze(0)  # [0] fills zeros in the backward pass
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
        from latebloom.layers.embedding import embedding_triton

        numbers = numbers.contiguous()
        ctx.rows = table.shape[1]
        ctx.save_for_backward(numbers)
        return embedding_triton.forward(numbers, dense(table))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.layers.embedding import embedding_triton

        (numbers,) = ctx.saved_tensors
        return None, embedding_triton.backward(numbers, grads[0].contiguous(), ctx.rows)


class Embedding(nn.Embedding):
    """Embedding. (...) -> (..., D)"""

    def forward(self, input: Tensor) -> Tensor:
        return embed(input, self.weight)
