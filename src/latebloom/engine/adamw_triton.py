"""AdamW for stacked models: the norms of the gradients, a few numbers for each model, and one pass over all memory.

The gradients are read where the backward pass left them. A captured step finds them at the same addresses whenever it
is replayed, so the addresses are arguments of the kernels.

Shapes: S stacked models, P parameters of a model, G groups of columns, N blocks: parts of one gradient and one group.
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
WARPS = 8
MOST_GRADIENTS = 128
"""A launch takes up to this many addresses."""
FIELDS = tl.constexpr(5)
"""Numbers of a block: its gradient, its first and last column there, the gradient's size, and its column in a row."""


# A thread loads four numbers side by side, in one instruction if the compiler knows that their address and the bound of
# the mask are multiples of 4, which it is told in each kernel, since it forgets it where a function ends. Otherwise
# neighbouring threads must load neighbouring numbers.


@triton.jit
def _block(gradients, plan):
    """Return the model, its gradient, and of a block: the place in all gradients, the column in the row, its first and
    its last column in the gradient."""
    model = tl.program_id(1).to(tl.int64)
    plan += FIELDS * tl.program_id(0)
    chosen = tl.load(plan)
    start = tl.load(plan + 1)
    gradient = gradients[0]
    for number in tl.static_range(1, len(gradients)):
        gradient = tl.where(chosen == number, gradients[number], gradient)
    return model, gradient, model * tl.load(plan + 3) + start, tl.load(plan + 4), start, tl.load(plan + 2)


@triton.jit
def _squares_kernel(
    gradients, plan, groups, counts, partials, first_block, block_count, counts_stride,
    SOME_REST: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    model, gradient, place, _, start, stop = _block(gradients, plan)
    places, size, within = gradient + place, stop - start, tl.arange(0, BLOCK)
    if SOME_REST:
        size = tl.where(tl.load(counts + model * counts_stride + tl.load(groups + tl.program_id(0))) > 0, size, 0)
    if ALIGNED:
        places, size = tl.multiple_of(places, 16), tl.multiple_of(size, 4)
    else:
        within = tl.max_contiguous(within, 1)
    gradient = tl.load(places + within, within < size, 0.0)
    tl.store(partials + model * block_count + first_block + tl.program_id(0), tl.sum(gradient * gradient, 0))


@triton.jit
def _scales_kernel(
    partials, norms, scales, rates, counts, block_count, rates_stride, counts_stride, weight_decay, clip,
    LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the norm of a model, and for each group: whether it moves, clipping, decay, rate, and the moments' root."""
    model = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, block_count, BLOCK):
        squares += tl.load(partials + model * block_count + start + parts, start + parts < block_count, 0.0)
    norm = tl.sqrt(tl.sum(squares, 0))
    tl.store(norms + model, norm)
    scale = clip / (norm + 1e-6)
    scale = tl.where(scale > 1, 1.0, scale)  # not a minimum, which would drop a NaN
    for group in tl.static_range(GROUPS):
        count = tl.load(counts + model * counts_stride + group)
        rate = tl.load(rates + model * rates_stride + group)
        # In float64, because the first corrections are differences of almost equal numbers.
        done = tl.maximum(count, 1.0).to(tl.float64)
        correction = (1 - tl.exp(done * LOG_FIRST)).to(tl.float32)
        place = scales + (model * GROUPS + group) * 5
        tl.store(place, count)
        tl.store(place + 1, scale)
        tl.store(place + 2, 1 - rate * weight_decay)
        tl.store(place + 3, rate / correction)
        tl.store(place + 4, tl.sqrt((1 - tl.exp(done * LOG_SECOND)).to(tl.float32)))


@triton.jit
def _adamw_update_kernel(
    parameters, gradients, first, second, plan, groups, scales, column_count, beta_first, beta_second, epsilon,
    GROUPS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    model, gradient, place, column, start, stop = _block(gradients, plan)
    places = gradient + place
    scales += (model * GROUPS + tl.load(groups + tl.program_id(0))) * 5
    within, row = tl.arange(0, BLOCK), model * column_count + column
    size = tl.where(tl.load(scales) > 0, stop - start, 0)
    if ALIGNED:
        places, row, size = tl.multiple_of(places, 16), tl.multiple_of(row, 4), tl.multiple_of(size, 4)
    else:
        within = tl.max_contiguous(within, 1)
    moves = within < size
    gradient = tl.load(places + within, moves, 0.0) * tl.load(scales + 1)
    mean = tl.load(first + row + within, moves, 0.0)
    mean += (1 - beta_first) * (gradient - mean)
    square = tl.load(second + row + within, moves, 0.0)
    square = beta_second * square + (1 - beta_second) * gradient * gradient
    parameter = tl.load(parameters + row + within, moves, 0.0) * tl.load(scales + 2)
    parameter -= tl.load(scales + 3) * mean / (tl.sqrt(square) / tl.load(scales + 4) + epsilon)
    tl.store(parameters + row + within, parameter, moves)
    tl.store(first + row + within, mean, moves)
    tl.store(second + row + within, square, moves)


@cache
def _plan(
    sizes: tuple[int, ...], ends: tuple[int, ...], device: torch.device
) -> tuple[list[tuple[Tensor, Tensor]], list[int]]:
    """Return, for each launch, its blocks (N, FIELDS) with the group of each (N), and the number of blocks before it.

    It is made in the first step of its kind, which is not captured.
    """
    tables, before, column = list[tuple[Tensor, Tensor]](), [0], 0
    for first in range(0, len(sizes), MOST_GRADIENTS):
        blocks, groups = list[tuple[int, ...]](), list[int]()
        for number, size in enumerate(sizes[first : first + MOST_GRADIENTS]):
            within = 0
            while within < size:
                group = sum(column + within >= end for end in ends)
                if group == len(ends):  # columns after the last group do not change
                    break
                stop = min(within + BLOCK, size, ends[group] - column)
                blocks.append((number, within, stop, size, column + within))
                groups.append(group)
                within = stop
            column += size
        tables.append(tuple(torch.tensor(each, dtype=torch.int32, device=device) for each in (blocks, groups)))
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
    dense = [gradient.contiguous() for gradient in gradients]
    sizes = tuple(gradient[0].numel() for gradient in dense)
    aligned = all(number % 4 == 0 for number in (columns, *sizes, *ends))
    aligned = aligned and all(gradient.data_ptr() % 16 == 0 for gradient in dense)
    tables, before = _plan(sizes, ends, parameters.device)
    launches = [
        (tuple(dense[number * MOST_GRADIENTS : (number + 1) * MOST_GRADIENTS]), *table)
        for number, table in enumerate(tables)
    ]
    groups, options = rates.shape[1], {"ALIGNED": aligned, "BLOCK": BLOCK, "num_warps": WARPS}
    partials, norms = parameters.new_empty(models, before[-1]), parameters.new_empty(models)
    scales = parameters.new_empty(models, groups, 5)
    for (parts, table, group), passed in zip(launches, before, strict=False):
        _squares_kernel[(len(table), models)](
            parts, table, group, counts, partials, passed, before[-1], counts.stride(0), SOME_REST=some_rest, **options
        )
    _scales_kernel[(models,)](
        partials, norms, scales, rates, counts, before[-1], rates.stride(0), counts.stride(0), weight_decay, clip,
        LOG_FIRST=log(max(betas[0], 1e-300)), LOG_SECOND=log(max(betas[1], 1e-300)), GROUPS=groups, BLOCK=256,
    )  # fmt: skip
    for parts, table, group in launches:
        _adamw_update_kernel[(len(table), models)](
            parameters, parts, first, second, table, group, scales, columns, *betas, epsilon, GROUPS=groups, **options
        )
    return norms
