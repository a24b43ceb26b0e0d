"""The gradient of embeddings of stacked models: a product with a one-hot matrix that is never stored.

Shapes: S stacked models, N lookups of a model, V rows of its table, D width.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor

from latebloom.layers.product_triton import add_product

LOOKUPS, ROWS = 64, 64
PROGRAMS = 512
"""Up to about as many programs are started, because each mostly waits for memory; several share a tile of a table."""
ELEMENTS = 4096
"""The numbers that a program looks up."""


@triton.jit
def _embedding_forward_kernel(
    numbers, table, y, lookups_in_all, table_stride, D: tl.constexpr, WIDTH: tl.constexpr, LOOKUPS: tl.constexpr
):
    model = tl.program_id(1).to(tl.int64)
    lookups = tl.program_id(0) * LOOKUPS + tl.arange(0, LOOKUPS)
    columns = tl.arange(0, WIDTH)
    known = lookups < lookups_in_all
    real = known[:, None] & (columns[None, :] < D)
    chosen = tl.load(numbers + model * lookups_in_all + lookups, known, 0).to(tl.int64)
    found = tl.load(table + model * table_stride + chosen[:, None] * D + columns[None, :], real)
    tl.store(y + (model * lookups_in_all + lookups[:, None]) * D + columns[None, :], found, real)


@triton.jit
def _embedding_backward_kernel(
    numbers, d_y, d_table, lookups_in_all, rows_in_all, parts, D: tl.constexpr, WIDTH: tl.constexpr,
    LOOKUPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) % parts
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) // parts * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(part * LOOKUPS, lookups_in_all, parts * LOOKUPS):
        lookups = start + tl.arange(0, LOOKUPS)
        known = lookups < lookups_in_all
        found = tl.load(numbers + model * lookups_in_all + lookups, known, -1)
        place = (model * lookups_in_all + lookups[:, None]) * D + columns[None, :]
        slope = tl.load(d_y + place, known[:, None] & (columns[None, :] < D), 0.0)
        chosen = (rows[:, None] == found[None, :]).to(tl.float32)
        # tf32x3 whatever the precision of training: this product is a sum, and nearly as exact as one in float32.
        total = add_product(total, chosen, slope, "tf32x3")
    # One table per part, summed afterwards in a fixed order.
    place = ((model * parts + part) * rows_in_all + rows[:, None]) * D + columns[None, :]
    tl.store(d_table + place, total, (rows[:, None] < rows_in_all) & (columns[None, :] < D))


def forward(numbers: Tensor, table: Tensor) -> Tensor:
    """Return the rows (S, ..., D) of a table (S, V, D) with these numbers (S, ...)."""
    models, width = table.shape[0], table.shape[-1]
    lookups = numbers[0].numel()
    padded = triton.next_power_of_2(width)
    at_once = max(1, ELEMENTS // padded)
    y = table.new_empty(*numbers.shape, width)
    _embedding_forward_kernel[(triton.cdiv(lookups, at_once), models)](
        numbers, table, y, lookups, table.stride(0), D=width, WIDTH=padded, LOOKUPS=at_once, num_warps=4
    )
    return y


def backward(numbers: Tensor, d_y: Tensor, rows: int) -> Tensor:
    """Return the gradient (S, V, D) of a table of V rows, for numbers (S, ...) and d_y (S, ..., D)."""
    models, width = d_y.shape[0], d_y.shape[-1]
    lookups = numbers[0].numel()
    padded = max(16, min(64, triton.next_power_of_2(width)))
    tiles = triton.cdiv(rows, ROWS), triton.cdiv(width, padded)
    parts = max(1, min(triton.cdiv(lookups, LOOKUPS), PROGRAMS // (models * tiles[0] * tiles[1])))
    d_table = d_y.new_empty(models, parts, rows, width)
    _embedding_backward_kernel[(tiles[0], parts * tiles[1], models)](
        numbers, d_y, d_table, lookups, rows, parts,
        D=width, WIDTH=padded, LOOKUPS=LOOKUPS, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return d_table[:, 0] if parts == 1 else d_table.sum(1)
