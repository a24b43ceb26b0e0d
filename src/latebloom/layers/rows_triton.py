"""The gradient of rows at chosen positions.

Shapes: S stacked models, B sequences, T tokens, D width, A positions.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096


@triton.jit
def _rows_backward_kernel(
    positions, d_y, d_x, rows_in_all, tokens, position_count, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    known, inside = rows < rows_in_all, columns[None, :] < D
    first = rows // tokens * position_count
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for number in range(position_count):
        chosen = tl.load(positions + first + number, known, -1) == rows % tokens
        place = (first[:, None] + number) * D + columns[None, :]
        total += tl.load(d_y + place, chosen[:, None] & inside, 0.0)
    tl.store(d_x + rows[:, None] * D + columns[None, :], total, known[:, None] & inside)


def backward(positions: Tensor, d_y: Tensor, tokens: int) -> Tensor:
    """Return the gradient (S, B, T, D) of what rows (S, B, A, D) were taken from, at positions (S, B, A)."""
    models, sequences, count, width = d_y.shape
    padded = triton.next_power_of_2(width)
    at_once = max(1, ELEMENTS // padded)
    rows = models * sequences * tokens
    d_x = d_y.new_empty(models, sequences, tokens, width)
    _rows_backward_kernel[(triton.cdiv(rows, at_once),)](
        positions, d_y, d_x, rows, tokens, count, D=width, WIDTH=padded, ROWS=at_once, num_warps=4
    )
    return d_x
