"""AdamW for stacked models: one update for all parameters of all models; each model has its own learning rates.

Shapes: S stacked models, P parameters of a model in one row, G groups: columns of P with the same rate and step count.
"""

from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-8


def adamw_(
    betas: tuple[float, float],
    weight_decay: float,
    parameters: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    ends: tuple[int, ...],
    scale: Tensor,
    rates: Tensor,
    counts: Tensor,
) -> None:
    """Update parameters (S, P) and both moments in place.

    `ends` are the columns where the groups end; columns after the last one do not change. `scale` (S,) multiplies the
    gradients. `rates` and `counts` (S, G) are the learning rate of each group and its number of steps, including this
    one; a group with the count 0 does not change, nor do its moments.
    """
    rates = torch.where(counts > 0, rates, -1.0)  # marks the groups that do not change
    counts = counts.clamp(min=1)
    corrections = torch.stack([1 - betas[0] ** counts, (1 - betas[1] ** counts).sqrt()], dim=-1)  # (S, G, 2)
    update = _kernel if parameters.is_cuda else adamw_loop
    update(betas, weight_decay, EPSILON, parameters, gradients, first, second, ends, scale, rates, corrections)


def _kernel(*arguments: Any) -> None:
    from latebloom.engine import adamw_triton

    adamw_triton.update(*arguments)


def adamw_loop(
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
    """Compute the update of the kernel, group by group."""
    beta_first, beta_second = betas
    start = 0
    for group, end in enumerate(ends):
        columns, start = slice(start, end), end
        rate = rates[:, group, None]
        moves = rate >= 0
        gradient = gradients[:, columns] * scale[:, None]
        mean = torch.lerp(first[:, columns], gradient, 1 - beta_first)
        square = beta_second * second[:, columns] + (1 - beta_second) * gradient * gradient
        correction, root = corrections[:, group, 0, None], corrections[:, group, 1, None]
        decayed = parameters[:, columns] * (1 - rate * weight_decay)
        moved = decayed - rate / correction * mean / (square.sqrt() / root + epsilon)
        for tensor, new in ((parameters, moved), (first, mean), (second, square)):
            tensor[:, columns] = torch.where(moves, new, tensor[:, columns])
