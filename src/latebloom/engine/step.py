"""One optimizer step. Nothing here waits for the device, so that the step can be captured on a GPU.

Shapes: B sequences, A asked answers, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latebloom.engine.settings import Training
from latebloom.tasks.task import Batch


def answer_losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The mean cross-entropy of each named answer."""
    logits = model(batch.tokens, batch.positions)  # (B, A, V)
    return {
        name: F.cross_entropy(logits[:, columns].flatten(0, 1), batch.targets[:, columns].flatten())
        for name, columns in batch.columns.items()
    }


def total_loss(losses: dict[str, Tensor], batch: Batch, weigh: str) -> Tensor:
    """What is minimised. Under `aligned` supervision a sum is asked at every digit and a recall once: weighing
    answers gives recall half of the loss, weighing positions gives it one part in many.
    """
    by_answer = weigh == "answers"
    counts = {name: 1 if by_answer else columns.stop - columns.start for name, columns in batch.columns.items()}
    total = 1 if by_answer else batch.targets.shape[1]
    return torch.stack([losses[name] * (count / total) for name, count in counts.items()]).sum()


def chosen_loss(losses: dict[str, Tensor], batch: Batch, by_position: Tensor, asked: dict[str, Tensor]) -> Tensor:
    """`total_loss` where the device alone knows what counts: by 1 or 0, whether positions are weighed, and which
    answers are asked."""
    counts = {name: columns.stop - columns.start for name, columns in batch.columns.items()}
    weights = torch.stack([asked[name] * (1 + by_position * (count - 1)) for name, count in counts.items()])
    total = 1 + by_position * (weights.sum() - 1)
    return (torch.stack([losses[name] for name in counts]) * weights / total).sum()


def parameters_by_role(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """A model's parameters by name, in the groups that can have learning rates of their own."""
    roles: dict[str, dict[str, nn.Parameter]] = {"recurrence": {}, "rest": {}, "attention": {}}
    role_of: dict[int, str] = {}
    for module in model.modules():
        role = getattr(module, "role", None)
        if role in ("recurrence", "attention"):
            role_of |= {id(parameter): role for parameter in module.parameters()}
    for name, parameter in model.named_parameters():
        roles[role_of.get(id(parameter), "rest")][name] = parameter
    return {role: parameters for role, parameters in roles.items() if parameters}


def build_optimizer(model: nn.Module, settings: Training) -> torch.optim.AdamW:
    """AdamW with one group for each role. Rates are tensors: a captured step reads the new rate as it is replayed."""
    device = next(model.parameters()).device
    return torch.optim.AdamW(
        [
            {"params": list(parameters.values()), "role": role, "lr": torch.tensor(0.0, device=device)}
            for role, parameters in parameters_by_role(model).items()
        ],
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )


def set_rates(optimizer: torch.optim.Optimizer, rate: float, factors: dict[str, float]) -> None:
    """Give each group the rate times its role's factor."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate * factors.get(group["role"], 1.0))
