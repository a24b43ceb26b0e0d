"""The mean cross-entropy of each answer in one pass over the logits, and its gradient in another.

Shapes: S stacked models, B sequences, A supervised positions, V vocabulary, K answers.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _tile(logits, targets, rows_in_all, columns_in_all, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return where the numbers of a tile are, which are real, the logits minus the largest, and the targets."""
    model = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    known = rows < rows_in_all
    real = known[:, None] & (columns[None, :] < columns_in_all)
    place = (model * rows_in_all + rows[:, None]) * columns_in_all + columns[None, :]
    x = tl.load(logits + place, real, -float("inf"))
    x = tl.where(known[:, None], x, 0.0)  # no difference of infinities
    target = tl.load(targets + model * rows_in_all + rows, known, -1)
    return rows, place, real, x - tl.max(x, 1)[:, None], columns[None, :] == target[:, None]


@triton.jit
def _loss_forward_kernel(
    logits, targets, partials, rows_in_all, positions, columns_in_all, ends,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, _, _, x, wanted = _tile(logits, targets, rows_in_all, columns_in_all, ROWS, WIDTH)
    surprise = tl.log(tl.sum(tl.exp(x), 1)) - tl.sum(tl.where(wanted, x, 0.0), 1)
    position = rows % positions
    at = partials + (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * len(ends)
    start = 0
    for answer in tl.static_range(len(ends)):
        chosen = (rows < rows_in_all) & (position >= start) & (position < ends[answer])
        count = (rows_in_all // positions) * (ends[answer] - start)
        # One number per program, summed afterwards in a fixed order.
        tl.store(at + answer, tl.sum(tl.where(chosen, surprise, 0.0), 0) / count)
        start = ends[answer]


@triton.jit
def _loss_backward_kernel(
    logits, targets, d_losses, d_logits, rows_in_all, positions, columns_in_all, model_stride, answer_stride, ends,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, place, real, x, wanted = _tile(logits, targets, rows_in_all, columns_in_all, ROWS, WIDTH)
    position = rows % positions
    slope = tl.zeros([ROWS], tl.float32)
    d_losses += tl.program_id(1).to(tl.int64) * model_stride
    start = 0
    for answer in tl.static_range(len(ends)):
        chosen = (position >= start) & (position < ends[answer])
        count = (rows_in_all // positions) * (ends[answer] - start)
        slope = tl.where(chosen, tl.load(d_losses + answer * answer_stride) / count, slope)
        start = ends[answer]
    shares = tl.exp(x)
    shares /= tl.sum(shares, 1)[:, None]
    tl.store(d_logits + place, (shares - wanted.to(tl.float32)) * slope[:, None], real)


def _settings(logits: Tensor) -> dict[str, int]:
    width = triton.next_power_of_2(logits.shape[-1])
    return {"ROWS": max(1, 4096 // width), "WIDTH": width, "num_warps": 4}


def forward(logits: Tensor, targets: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Return the losses (S, K) for logits (S, B, A, V) and targets (S, B, A); answers end at the columns `ends`."""
    models, sequences, positions, columns = logits.shape
    settings = _settings(logits)
    tiles = triton.cdiv(sequences * positions, settings["ROWS"])
    partials = logits.new_empty(models, tiles, len(ends))
    _loss_forward_kernel[(tiles, models)](
        logits, targets, partials, sequences * positions, positions, columns, ends, **settings
    )
    return partials.sum(1)


def backward(logits: Tensor, targets: Tensor, d_losses: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Return the gradient of the logits (S, B, A, V) for that of the losses (S, K)."""
    models, sequences, positions, columns = logits.shape
    settings = _settings(logits)
    d_logits = logits.new_empty(logits.shape)
    _loss_backward_kernel[(triton.cdiv(sequences * positions, settings["ROWS"]), models)](
        logits, targets, d_losses, d_logits, sequences * positions, positions, columns, *d_losses.stride(), ends,
        **settings,
    )  # fmt: skip
    return d_logits
