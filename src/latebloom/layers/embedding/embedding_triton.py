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
"""About as many programs fill a GPU; where there are few models, several share each tile of a table."""


@triton.jit
def _embedding_backward_kernel(
    numbers, d_y, d_table, lookups_in_all, rows_in_all, D: tl.constexpr, WIDTH: tl.constexpr, LOOKUPS: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) % PARTS
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) // PARTS * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(part * LOOKUPS, lookups_in_all, PARTS * LOOKUPS):
        lookups = start + tl.arange(0, LOOKUPS)
        known = lookups < lookups_in_all
        found = tl.load(numbers + model * lookups_in_all + lookups, known, -1)
        place = (model * lookups_in_all + lookups[:, None]) * D + columns[None, :]
        slope = tl.load(d_y + place, known[:, None] & (columns[None, :] < D), 0.0)
        chosen = (rows[:, None] == found[None, :]).to(tl.float32)
        # tf32x3 whatever the precision of training: this product is a sum, and nearly as exact as one in float32.
        total = add_product(total, chosen, slope, "tf32x3")
    # One table per part, summed afterwards in a fixed order.
    place = ((model * PARTS + part) * rows_in_all + rows[:, None]) * D + columns[None, :]
    tl.store(d_table + place, total, (rows[:, None] < rows_in_all) & (columns[None, :] < D))


def backward(numbers: Tensor, d_y: Tensor, rows: int) -> Tensor:
    """Return the gradient (S, V, D) of a table of V rows, for numbers (S, ...) and d_y (S, ..., D)."""
    models, width = d_y.shape[0], d_y.shape[-1]
    lookups = numbers[0].numel()
    padded = max(16, min(64, triton.next_power_of_2(width)))
    tiles = triton.cdiv(rows, ROWS), triton.cdiv(width, padded)
    parts = max(1, min(triton.cdiv(lookups, 4 * LOOKUPS), PROGRAMS // (models * tiles[0] * tiles[1])))
    parts = 1 << (
        parts.bit_length() - 1
    )  # a power of two, because the kernel is compiled once for each number of parts
    d_table = d_y.new_empty(models, parts, rows, width)
    _embedding_backward_kernel[(tiles[0], parts * tiles[1], models)](
        numbers, d_y, d_table, lookups, rows,
        D=width, WIDTH=padded, LOOKUPS=LOOKUPS, ROWS=ROWS, PARTS=parts, num_warps=4,
    )  # fmt: skip
    return d_table.sum(1)
