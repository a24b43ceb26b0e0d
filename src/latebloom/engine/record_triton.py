"""The log of a step in one launch.

Shapes: S runs, K answers.
"""

# A kernel is compiled, not run as Python: its constants are plain numbers, and branches on them are resolved.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _record_step_kernel(
    sums, first_bad, index, losses, norms, each, included, run_count, each_strides, included_strides,
    ANSWERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    runs = tl.arange(0, BLOCK)
    real = runs < run_count
    step = tl.load(index)
    loss = tl.load(losses + runs, real, 0.0)
    norm = tl.load(norms + runs, real, 0.0)
    row = sums + runs * (2 + ANSWERS)
    tl.store(row, tl.load(row, real) + loss, real)
    tl.store(row + 1, tl.load(row + 1, real) + norm, real)
    for answer in tl.static_range(ANSWERS):
        one = tl.load(each + runs * each_strides[0] + answer * each_strides[1], real, 0.0)
        one *= tl.load(included + runs * included_strides[0] + answer * included_strides[1], real, 0.0)
        tl.store(row + 2 + answer, tl.load(row + 2 + answer, real) + one, real)
    infinity = float("inf")
    is_fine = (tl.abs(loss) < infinity) & (tl.abs(norm) < infinity)  # no comparison with a NaN holds
    before = tl.load(first_bad + runs, real, 0)
    tl.store(first_bad + runs, tl.where((before < 0) & (is_fine == 0), step, before), real)
    tl.store(index, step + 1)


def record(
    sums: Tensor, first_bad: Tensor, index: Tensor, losses: Tensor, norms: Tensor, each: Tensor, included: Tensor
) -> None:
    """Update the sums (S, 2 + K), `first_bad` (S,) and the index () in place."""
    runs, answers = each.shape
    # One program, of one warp, because all runs read the index before it changes.
    _record_step_kernel[(1,)](
        sums, first_bad, index, losses.contiguous(), norms.contiguous(), each, included, runs, each.stride(),
        included.stride(), ANSWERS=answers, BLOCK=triton.next_power_of_2(runs), num_warps=1,
    )  # fmt: skip
