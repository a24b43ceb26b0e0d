"""Rotation of pairs of channels by angles: one kernel forward, one backward.

Shapes: R rows, N channels, P = N / 2 pairs of channels, of which the first few rotate.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 1024
"""Pairs of a program."""


@triton.jit
def _rotate_kernel(
    x, angle, slope, y, d_angle, rows, N: tl.constexpr, ROTATED: tl.constexpr, PAIRS: tl.constexpr,
    ROWS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Store in y the rotated x, or with BACK the gradient of x, and that of the angles."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    pairs = tl.arange(0, PAIRS)[None, :]
    real = row < rows
    turns = real & (pairs < ROTATED)
    first, second = real & (2 * pairs < N), real & (2 * pairs + 1 < N)
    theta = tl.load(angle + row * ROTATED + pairs, turns, 0.0)
    cos, sin = tl.cos(theta), tl.sin(theta)
    place = row * N + 2 * pairs
    even, odd = tl.load(x + place, first, 0.0), tl.load(x + place + 1, second, 0.0)
    turned_even, turned_odd = even * cos - odd * sin, even * sin + odd * cos
    if BACK:
        d_even, d_odd = tl.load(slope + place, first, 0.0), tl.load(slope + place + 1, second, 0.0)
        tl.store(d_angle + row * ROTATED + pairs, d_odd * turned_even - d_even * turned_odd, turns)
        tl.store(y + place, d_even * cos + d_odd * sin, first)
        tl.store(y + place + 1, d_odd * cos - d_even * sin, second)
    else:
        tl.store(y + place, turned_even, first)
        tl.store(y + place + 1, turned_odd, second)


def _launch(x: Tensor, angle: Tensor, slope: Tensor | None, y: Tensor, d_angle: Tensor | None) -> None:
    channels, rotated = x.shape[-1], angle.shape[-1]
    rows, pairs = x.numel() // channels, triton.next_power_of_2((channels + 1) // 2)
    tile = max(1, ELEMENTS // pairs)
    _rotate_kernel[(triton.cdiv(rows, tile),)](
        x, angle, slope, y, d_angle, rows, N=channels, ROTATED=rotated, PAIRS=pairs, ROWS=tile,
        BACK=slope is not None, num_warps=4,
    )  # fmt: skip


def forward(x: Tensor, angle: Tensor) -> Tensor:
    """Return x (..., N) with its first pairs of channels rotated by angles (..., pairs); both are contiguous."""
    y = torch.empty_like(x)
    _launch(x, angle, None, y, None)
    return y


def backward(x: Tensor, angle: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the angles."""
    d_x, d_angle = torch.empty_like(x), torch.empty_like(angle)
    _launch(x, angle, slope, d_x, d_angle)
    return d_x, d_angle
