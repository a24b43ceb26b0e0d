"""What a step leaves for the log: sums of losses and norms, and the first step at which one was not finite.

Shapes: S runs, K answers.
"""

import torch
from torch import Tensor


def record_(
    sums: Tensor, first_bad: Tensor, index: Tensor, losses: Tensor, norms: Tensor, each: Tensor, included: Tensor
) -> None:
    """Add the losses and norms (S,) and the included losses (S, K) of the answers to the sums (S, 2 + K).

    Also set `first_bad` (S,) to the `index` () of the step where it is negative and a loss or norm is not finite, and
    count the step. On a GPU this is one launch.
    """
    if sums.is_cuda:
        from latebloom.engine import record_triton

        record_triton.record(sums, first_bad, index, losses, norms, each, included)
    else:
        record_plainly(sums, first_bad, index, losses, norms, each, included)


def record_plainly(
    sums: Tensor, first_bad: Tensor, index: Tensor, losses: Tensor, norms: Tensor, each: Tensor, included: Tensor
) -> None:
    """Do what the kernel does."""
    sums += torch.cat([losses[:, None], norms[:, None], each * included], dim=1)
    is_first = ~(losses.isfinite() & norms.isfinite()) & (first_bad < 0)
    first_bad.copy_(torch.where(is_first, index, first_bad))
    index += 1
