"""AdamW for stacked models in two passes: one for the norms of the gradients, and one over all memory of the optimizer.

Both read the gradients where the backward pass left them. A captured step finds them at the same addresses whenever it
is replayed, so the addresses are arguments of the kernels.

Shapes: S stacked models, P parameters of a model, G groups of columns, N blocks: parts of one gradient.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false

from collections.abc import Sequence
from functools import cache
from math import log

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
MOST_GRADIENTS = 128
"""A launch takes up to this many addresses."""
MOST_PARTIALS = 1024
"""Up to this many partial sums, every program of the second pass adds them up by itself."""


@triton.jit
def _block(gradients, plan, BLOCK: tl.constexpr):
    """Return the model, the address of a block's gradients, their columns in the row, and which are real."""
    model = tl.program_id(1).to(tl.int64)
    plan += 4 * tl.program_id(0)
    chosen = tl.load(plan)
    start = tl.load(plan + 1)
    size = tl.load(plan + 2)
    gradient = gradients[0]
    for number in tl.static_range(1, len(gradients)):
        gradient = tl.where(chosen == number, gradients[number], gradient)
    within = start + tl.arange(0, BLOCK)
    return model, gradient + model * size + within, tl.load(plan + 3) + within, within < size


@triton.jit
def _group(columns, end_0, end_1, GROUPS: tl.constexpr):
    group = (columns >= end_0).to(tl.int32) + (columns >= end_1).to(tl.int32)
    return tl.minimum(group, GROUPS - 1)


@triton.jit
def _squares_kernel(
    gradients, plan, counts, corrections, partials, first_partial, partial_count, counts_stride, end_0, end_1,
    LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr, GROUPS: tl.constexpr, SOME_REST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    model, places, columns, real = _block(gradients, plan, BLOCK)
    counts += model * counts_stride
    if SOME_REST:
        real &= tl.load(counts + _group(columns, end_0, end_1, GROUPS)) > 0
    gradient = tl.load(places, real, 0.0)
    at = model * partial_count + first_partial + tl.program_id(0)
    tl.store(partials + at, tl.sum(gradient * gradient, 0))
    if first_partial + tl.program_id(0) == 0:
        # In float64, because the first corrections are differences of almost equal numbers.
        for group in tl.static_range(GROUPS):
            done = tl.maximum(tl.load(counts + group), 1.0).to(tl.float64)
            place = corrections + (model * GROUPS + group) * 2
            tl.store(place, (1 - tl.exp(done * LOG_FIRST)).to(tl.float32))
            tl.store(place + 1, tl.sqrt((1 - tl.exp(done * LOG_SECOND)).to(tl.float32)))


@triton.jit
def _adamw_update_kernel(
    parameters, gradients, first, second, plan, partials, norms, rates, counts, corrections, first_partial,
    partial_count, column_count, rates_stride, counts_stride, end_0, end_1, end, beta_first, beta_second, weight_decay,
    epsilon, clip, GROUPS: tl.constexpr, PARTIALS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    model, places, columns, real = _block(gradients, plan, BLOCK)
    parts = tl.arange(0, PARTIALS)
    squares = tl.load(partials + model * partial_count + parts, parts < partial_count, 0.0)
    norm = tl.sqrt(tl.sum(squares, 0))
    if first_partial + tl.program_id(0) == 0:
        tl.store(norms + model, norm)
    scale = clip / (norm + 1e-6)
    scale = tl.where(scale > 1, 1.0, scale)  # not a minimum, which would drop a NaN
    group = _group(columns, end_0, end_1, GROUPS)
    rate = tl.load(rates + model * rates_stride + group)
    correction = tl.load(corrections + 2 * (model * GROUPS + group))
    root = tl.load(corrections + 2 * (model * GROUPS + group) + 1)
    moves = real & (columns < end) & (tl.load(counts + model * counts_stride + group) > 0)
    gradient = tl.load(places, moves, 0.0) * scale
    places = model * column_count + columns
    mean = tl.load(first + places, moves, 0.0)
    mean += (1 - beta_first) * (gradient - mean)
    square = tl.load(second + places, moves, 0.0)
    square = beta_second * square + (1 - beta_second) * gradient * gradient
    parameter = tl.load(parameters + places, moves, 0.0) * (1 - rate * weight_decay)
    parameter -= rate / correction * mean / (tl.sqrt(square) / root + epsilon)
    tl.store(parameters + places, parameter, moves)
    tl.store(first + places, mean, moves)
    tl.store(second + places, square, moves)


@cache
def _plan(sizes: tuple[int, ...], device: torch.device) -> tuple[list[Tensor], list[int]]:
    """Return, for each launch, its blocks (N, 4), and the number of blocks before it.

    A block has the number of its gradient in the launch, its first column there, the size of the gradient, and the
    gradient's first column in the row. It is made in the first step of its kind, which is not captured.
    """
    tables, before, column = list[Tensor](), [0], 0
    for first in range(0, len(sizes), MOST_GRADIENTS):
        blocks = list[tuple[int, int, int, int]]()
        for number, size in enumerate(sizes[first : first + MOST_GRADIENTS]):
            blocks += [(number, start, size, column) for start in range(0, size, BLOCK)]
            column += size
        tables.append(torch.tensor(blocks, dtype=torch.int32, device=device))
        before.append(before[-1] + len(blocks))
    return tables, before


def update(
    betas: tuple[float, float],
    weight_decay: float,
    epsilon: float,
    clip: float,
    parameters: Tensor,
    gradients: Sequence[Tensor],
    first: Tensor,
    second: Tensor,
    ends: tuple[int, ...],
    rates: Tensor,
    counts: Tensor,
    some_rest: bool,
) -> Tensor:
    """Do one step of all models in place, with at most three groups, and return the norms (S,) of the gradients."""
    models, columns = parameters.shape
    end_0, end_1 = (*ends, columns, columns)[:2]
    dense = [gradient.contiguous() for gradient in gradients]
    tables, before = _plan(tuple(gradient[0].numel() for gradient in dense), parameters.device)
    launches = [
        (tuple(dense[number * MOST_GRADIENTS : (number + 1) * MOST_GRADIENTS]), table, before[number])
        for number, table in enumerate(tables)
    ]
    partials, norms = parameters.new_empty(models, before[-1]), parameters.new_empty(models)
    groups = rates.shape[1]
    corrections = parameters.new_empty(models, groups, 2)
    logarithms = [log(max(beta, 1e-300)) for beta in betas]
    for parts, table, passed in launches:
        _squares_kernel[(len(table), models)](
            parts, table, counts, corrections, partials, passed, before[-1], counts.stride(0), end_0, end_1,
            LOG_FIRST=logarithms[0], LOG_SECOND=logarithms[1], GROUPS=groups, SOME_REST=some_rest, BLOCK=BLOCK,
        )  # fmt: skip
    if before[-1] > MOST_PARTIALS:
        partials = partials.sum(1, keepdim=True)
    for parts, table, passed in launches:
        _adamw_update_kernel[(len(table), models)](
            parameters, parts, first, second, table, partials, norms, rates, counts, corrections, passed,
            partials.shape[1], columns, rates.stride(0), counts.stride(0), end_0, end_1, ends[-1], *betas, weight_decay,
            epsilon, clip, GROUPS=groups, PARTIALS=triton.next_power_of_2(partials.shape[1]), BLOCK=BLOCK,
        )  # fmt: skip
    return norms
