"""The training loss. Nothing here waits for the device, so that a step can be captured on a GPU.

Shapes: S stacked models, B sequences, A supervised positions, V vocabulary, K answers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.layers.stacking import stackable
from latebloom.tasks.task import Batch


def answer_losses(model: Callable[..., Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return the mean cross-entropy of each named answer."""
    logits = model(batch.tokens, batch.positions)  # (B, A, V)
    if _takes_kernel(logits, batch):
        ends = tuple(columns.stop for columns in batch.columns.values())
        return dict(zip(batch.columns, _fused(logits, batch.targets, ends).unbind(), strict=True))
    return {
        name: F.cross_entropy(logits[:, columns].flatten(0, 1), batch.targets[:, columns].flatten())
        for name, columns in batch.columns.items()
    }


MOST_COLUMNS = 8192
"""The kernel holds all logits of a position at once."""


def _takes_kernel(logits: Tensor, batch: Batch) -> bool:
    edges = [0, *(columns.stop for columns in batch.columns.values())]
    starts = [columns.start for columns in batch.columns.values()]
    fits = logits.dtype == torch.float32 and logits.shape[-1] <= MOST_COLUMNS
    return logits.is_cuda and fits and [*starts, logits.shape[1]] == edges


class FusedLosses(torch.autograd.Function):
    """Losses (S, K) of answers that stand side by side, from logits (S, B, A, V) and targets (S, B, A)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ends: tuple[int, ...]) -> Tensor:
        from latebloom.engine import loss_triton

        logits, targets = logits.contiguous(), targets.contiguous()
        ctx.save_for_backward(logits, targets)
        ctx.ends = ends
        return loss_triton.forward(logits, targets, ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        from latebloom.engine import loss_triton

        logits, targets = ctx.saved_tensors
        return loss_triton.backward(logits, targets, grads[0], ctx.ends), None, None


_fused = stackable(
    lambda logits, targets, ends: FusedLosses.apply(logits[None], targets[None], ends).squeeze(0), FusedLosses.apply
)


def total_loss(
    losses: Mapping[str, Tensor], batch: Batch, per_token: bool | Tensor, included: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Return the loss to minimise: the sum over answers, or the mean over supervised tokens with `per_token`.

    With aligned supervision a sum is supervised at every digit and a recall once, so an average per token gives recall
    a small part of the loss. Of the answers of the batch, those without a loss in `losses` are left out of the sum but
    count in the average. Where stacked runs differ, `per_token` and `included` (1 for each answer that is in the
    loss, 0 for the others) are tensors that only the device knows.
    """
    weights = {}
    for name, columns in batch.columns.items():
        weights[name] = 1 + per_token * (columns.stop - columns.start - 1)
        if included is not None:
            weights[name] = weights[name] * included[name]
    total = 1 + per_token * (sum(weights.values()) - 1)
    added = {name: weight for name, weight in weights.items() if name in losses}
    # The order of rounding is part of the result: runs of earlier versions continue bit for bit.
    if isinstance(total, Tensor):
        return torch.stack([losses[name] * weight / total for name, weight in added.items()]).sum()
    shares = {name: weight / total for name, weight in added.items()}
    # A factor of 1 is left out, because a launch on a GPU costs more than what it computes.
    parts = [
        losses[name] if isinstance(share, float) and share == 1.0 else losses[name] * share
        for name, share in shares.items()
    ]
    return torch.stack(parts).sum()
