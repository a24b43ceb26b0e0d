"""AdamW for stacked models: the norms of the gradients, a few numbers for each model, and one pass over all memory.

The gradients are read where the backward pass left them. A captured step finds them at the same addresses whenever it
is replayed, so a table of addresses that was written then stays right.

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
"""A launch takes up to this many addresses as arguments."""
FIELDS = tl.constexpr(5)
"""Numbers of a block: its gradient, its first and last column there, the gradient's size, and its column in a row."""

SCALES = tl.constexpr(5)
"""Numbers of a group of a model: its step count, the factors of gradient and weight decay, its rate, and the root by
which the second moment is divided."""

# A thread loads four numbers side by side, in one instruction if the compiler knows that their address and the bound of
# the mask are multiples of 4, which it is told in each kernel, since it forgets it where a function ends. Otherwise
# neighbouring threads must load neighbouring numbers.


@triton.jit
def _addresses_kernel(gradients, table):
    """Write the addresses of gradients into a table.

    The other kernels have thousands of programs, and a program that has all addresses as arguments takes longer to
    choose one of them than to read its gradients.
    """
    for number in tl.static_range(len(gradients)):
        tl.store(table + number, gradients[number].to(tl.int64))


@triton.jit
def _block(table, plan):
    """Return the model, its gradient, and of a block: the place in all gradients, the column in the row, its first and
    its last column in the gradient."""
    model = tl.program_id(1).to(tl.int64)
    plan += FIELDS * tl.program_id(0)
    gradient = tl.load(table + tl.load(plan)).to(tl.pointer_type(tl.float32))
    start = tl.load(plan + 1)
    return model, gradient, model * tl.load(plan + 3) + start, tl.load(plan + 4), start, tl.load(plan + 2)


@triton.jit
def _squares_kernel(
    table, plan, groups, counts, partials, counts_stride,
    SOME_REST: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    model, gradient, place, _, start, stop = _block(table, plan)
    places, size, within = gradient + place, stop - start, tl.arange(0, BLOCK)
    if SOME_REST:
        size = tl.where(tl.load(counts + model * counts_stride + tl.load(groups + tl.program_id(0))) > 0, size, 0)
    if ALIGNED:
        places, size = tl.multiple_of(places, 16), tl.multiple_of(size, 4)
    else:
        within = tl.max_contiguous(within, 1)
    gradient = tl.load(places + within, within < size, 0.0)
    tl.store(partials + model * tl.num_programs(0) + tl.program_id(0), tl.sum(gradient * gradient, 0))


@triton.jit
def _scales_kernel(
    partials, norms, scales, rates, counts, block_count, rates_stride, counts_stride, weight_decay, clip,
    LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the norm of a model, and the `SCALES` of each group."""
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
        place = scales + (model * GROUPS + group) * SCALES
        tl.store(place, count)
        tl.store(place + 1, scale)
        tl.store(place + 2, 1 - rate * weight_decay)
        tl.store(place + 3, rate / correction)
        tl.store(place + 4, tl.sqrt((1 - tl.exp(done * LOG_SECOND)).to(tl.float32)))


@triton.jit
def _adamw_update_kernel(
    parameters, table, first, second, plan, groups, scales, column_count, beta_first, beta_second, epsilon,
    GROUPS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    model, gradient, place, column, start, stop = _block(table, plan)
    places = gradient + place
    scales += (model * GROUPS + tl.load(groups + tl.program_id(0))) * SCALES
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
def _plan(sizes: tuple[int, ...], ends: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the blocks (N, FIELDS), and the group of each (N).

    They are made in the first step of their kind, which is not captured.
    """
    blocks, groups, column = list[tuple[int, ...]](), list[int](), 0
    for number, size in enumerate(sizes):
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
    return torch.tensor(blocks, dtype=torch.int32, device=device), torch.tensor(groups, device=device)


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
    groups = rates.shape[1]
    dense = [gradient.contiguous() for gradient in gradients]
    sizes = tuple(gradient[0].numel() for gradient in dense)
    aligned = all(number % 4 == 0 for number in (columns, *sizes, *ends))
    aligned = aligned and all(gradient.data_ptr() % 16 == 0 for gradient in dense)
    options = {"ALIGNED": aligned, "BLOCK": BLOCK, "num_warps": WARPS}
    plan, group_of = _plan(sizes, ends, parameters.device)
    table = torch.empty(len(dense), dtype=torch.int64, device=parameters.device)
    for start in range(0, len(dense), MOST_GRADIENTS):
        _addresses_kernel[(1,)](tuple(dense[start : start + MOST_GRADIENTS]), table[start:], num_warps=1)
    partials, norms = parameters.new_empty(models, len(plan)), parameters.new_empty(models)
    scales = parameters.new_empty(models, groups, SCALES.value)
    _squares_kernel[(len(plan), models)](
        table, plan, group_of, counts, partials, counts.stride(0), SOME_REST=some_rest, **options
    )
    _scales_kernel[(models,)](
        partials, norms, scales, rates, counts, len(plan), rates.stride(0), counts.stride(0), weight_decay, clip,
        LOG_FIRST=log(max(betas[0], 1e-300)), LOG_SECOND=log(max(betas[1], 1e-300)), GROUPS=groups, BLOCK=256,
    )  # fmt: skip
    _adamw_update_kernel[(len(plan), models)](
        parameters, table, first, second, plan, group_of, scales, columns, *betas, epsilon, GROUPS=groups, **options
    )
    return norms
