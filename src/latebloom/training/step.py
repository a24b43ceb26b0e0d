"""One optimizer step. Nothing here waits for the device, so that the step can be captured on a GPU.

Shapes: B sequences, A asked answers, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.tasks.task import Batch
from latebloom.training.settings import Training


def answer_losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The mean cross-entropy of each named answer."""
    logits = model(batch.tokens, batch.positions)  # (B, A, V)
    return {
        name: F.cross_entropy(logits[:, columns].flatten(0, 1), batch.targets[:, columns].flatten())
        for name, columns in batch.columns.items()
    }


def total_loss(losses: dict[str, Tensor], batch: Batch, weigh: str) -> Tensor:
    """What is minimised. Under `aligned` supervision a sum is asked at every digit and a recall once: weighing
    answers gives recall half of the loss, weighing positions gives it one part in many."""
    if weigh == "answers":
        return torch.stack(list(losses.values())).sum()
    asked = batch.targets.shape[1]
    return torch.stack(
        [losses[name] * ((columns.stop - columns.start) / asked) for name, columns in batch.columns.items()]
    ).sum()


def build_optimizer(model: nn.Module, settings: Training) -> torch.optim.AdamW:
    """AdamW with one group for each role, so that recurrence and attention can have rates of their own.

    Rates are tensors: a captured step reads the new rate without being captured again.
    """
    roles: dict[str, list[nn.Parameter]] = {"recurrence": [], "attention": [], "rest": []}
    taken: set[int] = set()
    for module in model.modules():
        role = getattr(module, "role", None)
        if role in ("recurrence", "attention"):
            roles[role] += module.parameters()
            taken |= {id(parameter) for parameter in module.parameters()}
    roles["rest"] = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    device = next(model.parameters()).device
    return torch.optim.AdamW(
        [
            {"params": parameters, "role": role, "lr": torch.tensor(0.0, device=device)}
            for role, parameters in roles.items()
            if parameters
        ],
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def set_rates(optimizer: torch.optim.Optimizer, rate: float, factors: dict[str, float]) -> None:
    """Give each group the rate times its role's factor."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate * factors.get(group["role"], 1.0))
