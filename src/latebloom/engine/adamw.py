"""AdamW for stacked models: one update for all parameters of all models; each model has its own learning rates.

Shapes: S stacked models, P parameters of a model in one row, G groups: columns of P with the same rate and step count.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-8


def adamw_(
    betas: tuple[float, float],
    weight_decay: float,
    clip: float,
    parameters: Tensor,
    gradients: Sequence[Tensor],
    first: Tensor,
    second: Tensor,
    *,
    ends: tuple[int, ...],
    rates: Tensor,
    counts: Tensor,
    some_rest: bool = False,
) -> Tensor:
    """Update parameters (S, P) and both moments in place; return the norms (S,) of the gradients before clipping.

    The gradients (S, ...), flattened and side by side, are those of the first columns of the parameters. `ends` are the
    columns where the groups end; columns after the last one do not change. `rates` and `counts` (S, G) are the learning
    rate of each group and its number of steps, including this one; a group with the count 0 does not change, nor do its
    moments. With `some_rest` the last group may have that count in some models, where its gradients are not in the
    norm.
    """
    update = _kernel if parameters.is_cuda else adamw_loop
    return update(
        betas, weight_decay, EPSILON, clip, parameters, gradients, first, second, ends, rates, counts, some_rest
    )


def _kernel(*arguments: Any) -> Tensor:
    from latebloom.engine import adamw_triton

    return adamw_triton.update(*arguments)


def adamw_loop(
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
    """Compute the update of the kernel, group by group."""
    row = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
    if some_rest:
        rest, last = (torch.linalg.vector_norm(part, dim=1) for part in row.tensor_split([ends[-2]], dim=1))
        norms = torch.hypot(rest, torch.where(counts[:, -1] > 0, last, 0.0))
    else:
        norms = torch.linalg.vector_norm(row, dim=1)
    scale = (clip / (norms + 1e-6)).clamp(max=1.0)
    beta_first, beta_second = betas
    done = counts.clamp(min=1)
    corrections, roots = 1 - beta_first**done, (1 - beta_second**done).sqrt()
    start = 0
    for group, end in enumerate(ends):
        columns, start = slice(start, end), end
        moves = counts[:, group, None] > 0
        rate = rates[:, group, None]
        gradient = row[:, columns] * scale[:, None]
        mean = torch.lerp(first[:, columns], gradient, 1 - beta_first)
        square = beta_second * second[:, columns] + (1 - beta_second) * gradient * gradient
        correction, root = corrections[:, group, None], roots[:, group, None]
        decayed = parameters[:, columns] * (1 - rate * weight_decay)
        moved = decayed - rate / correction * mean / (square.sqrt() / root + epsilon)
        for tensor, new in ((parameters, moved), (first, mean), (second, square)):
            tensor[:, columns] = torch.where(moves, new, tensor[:, columns])
    return norms
