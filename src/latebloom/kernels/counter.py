"""The counter's hash as an operation: `tasks.counter` says what it computes, this is its fast path on a GPU.

Shapes: S stacked streams, B rows, N numbers a row.
"""

from torch import Tensor

from latebloom.kernels.stacking import stackable


def _stacked_words(key: Tensor, rows: Tensor, offset: int, count: int) -> Tensor:
    from latebloom.kernels import counter_triton

    return counter_triton.words(key.contiguous(), rows[0].contiguous(), offset, count)


def _stacked_distinct(key: Tensor, rows: Tensor, offset: int, count: int, bound: int) -> Tensor:
    from latebloom.kernels import counter_triton

    return counter_triton.distinct(key.contiguous(), rows[0].contiguous(), offset, count, bound)


fused_words = stackable(lambda key, rows, *rest: _stacked_words(key[None], rows[None], *rest)[0], _stacked_words)
"""Hash words (B, N) for a key () and rows (B,), which stacked streams share."""

fused_distinct = stackable(
    lambda key, rows, *rest: _stacked_distinct(key[None], rows[None], *rest)[0], _stacked_distinct
)
"""The columns (B, N) of the least N of `bound` words."""
