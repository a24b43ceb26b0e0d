"""The training loss. Nothing here waits for the device, so that a step can be captured on a GPU.

Shapes: B sequences, A supervised positions, V vocabulary.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from latebloom.tasks.task import Batch


def answer_losses(model: Callable[..., Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return the mean cross-entropy of each named answer."""
    logits = model(batch.tokens, batch.positions)  # (B, A, V)
    return {
        name: F.cross_entropy(logits[:, columns].flatten(0, 1), batch.targets[:, columns].flatten())
        for name, columns in batch.columns.items()
    }


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
    return torch.stack([losses[name] * (weight / total) for name, weight in added.items()]).sum()
