"""AdamW for stacked models in one pass over memory.

Shapes: S stacked models, P parameters of a model, G groups of columns.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _adamw_update_kernel(
    parameters,
    gradients,
    first,
    second,
    scale,
    rates,
    corrections,
    column_count,
    end_0,
    end_1,
    end,
    beta_first,
    beta_second,
    weight_decay,
    epsilon,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    model = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    group = (columns >= end_0).to(tl.int32) + (columns >= end_1).to(tl.int32)
    at = model * GROUPS + tl.minimum(group, GROUPS - 1)  # columns after the last group do not change
    rate = tl.load(rates + at)
    correction = tl.load(corrections + 2 * at)
    root = tl.load(corrections + 2 * at + 1)
    moves = (columns < end) & (rate >= 0)
    places = model * column_count + columns
    gradient = tl.load(gradients + places, moves, 0.0) * tl.load(scale + model)
    mean = tl.load(first + places, moves, 0.0)
    mean += (1 - beta_first) * (gradient - mean)
    square = tl.load(second + places, moves, 0.0)
    square = beta_second * square + (1 - beta_second) * gradient * gradient
    parameter = tl.load(parameters + places, moves, 0.0) * (1 - rate * weight_decay)
    parameter -= rate / correction * mean / (tl.sqrt(square) / root + epsilon)
    tl.store(parameters + places, parameter, moves)
    tl.store(first + places, mean, moves)
    tl.store(second + places, square, moves)


def update(
    betas: tuple[float, float],
    weight_decay: float,
    epsilon: float,
    parameters: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    ends: tuple[int, ...],
    scale: Tensor,
    rates: Tensor,
    corrections: Tensor,
) -> None:
    """Do one step of all models in place, with at most three groups."""
    models, columns = parameters.shape
    end_0, end_1 = (*ends, columns, columns)[:2]
    _adamw_update_kernel[(triton.cdiv(ends[-1], BLOCK), models)](
        parameters, gradients, first, second, scale.contiguous(), rates.contiguous(), corrections.contiguous(), columns,
        end_0, end_1, ends[-1], *betas, weight_decay, epsilon, GROUPS=rates.shape[1], BLOCK=BLOCK,
    )  # fmt: skip
