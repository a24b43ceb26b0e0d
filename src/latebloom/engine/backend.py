"""The backend of a trainer: how a function of a model is applied, and how parameters are updated.

Shapes: S models, R roles of parameters (see `parameters_by_role`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latebloom.engine.checkpoint import Tensors
from latebloom.engine.settings import Training
from latebloom.evaluation.accuracy import apply_to_one
from latebloom.models.sequence_model import SequenceModel

LARGEST = 1e18
"""Larger weights and gradients overflow when they are squared, so a run that has them has diverged."""


class Backend(ABC):
    """S models of one shape and their optimizer state."""

    roles: list[str]
    """The roles of the parameters, each with its own learning rate; attention is the last."""
    template: SequenceModel
    """The module that is called; gates and state noise are set on its parts."""
    parameters: dict[str, Tensor]
    """The parameters by name, with a leading axis S if there may be several models."""

    @abstractmethod
    def each(self, function: Callable[..., Any], *per_model: Tensor) -> Any:
        """Call `function(model, *arguments)` for every model; arguments and results have a leading axis S."""

    def start_step(self) -> None:  # noqa: B027 (not every backend has something to do)
        """Drop the gradients of the previous step."""

    @abstractmethod
    def update(
        self,
        losses: Tensor,
        rates: Tensor,
        counts: Tensor,
        trains_attention: bool | None,
        guides: Tensor | None = None,
    ) -> Tensor:
        """Update the parameters by the gradient of the losses (S,), and return the norms (S,) of the gradients.

        With `guides` (S,), other losses with graphs of their own, the gradient of the losses loses the part that
        opposes the gradient of the guides, and both gradients are added.

        `rates` (S, R) are learning rates. `counts` (S, R) are the optimizer steps of each role including this one, and
        0 for a role that is not trained. `trains_attention` is None if the models differ in it. Attention has no
        optimizer state before its first step.
        """

    @property
    def attention_names(self) -> set[str]:
        """The names of attention's parameters in the model."""
        return set(parameters_by_role(self.template).get("attention", {}))

    @abstractmethod
    def finite(self) -> list[bool]:
        """Return whether parameters and optimizer state of each model are finite and not absurdly large; waits for the
        device."""

    @abstractmethod
    def model(self, index: int) -> SequenceModel:
        """Return one of the models."""

    def parameters_of(self, index: int) -> dict[str, Tensor]:
        """Return the parameters of one of the models by name."""
        return self.parameters

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return the tensors of a checkpoint, by file and by name."""

    @abstractmethod
    def load(self, tensors: Tensors) -> None:
        """Load the tensors that `tensors` returned."""

    @abstractmethod
    def tensors_of(self, index: int, counts: Sequence[int]) -> Tensors:
        """Return the tensors of one of the models, as if it was trained alone.

        `counts` are the optimizer steps that each role has done.
        """

    @abstractmethod
    def load_each(self, tensors: Sequence[Tensors]) -> None:
        """Load the tensors that `tensors_of` returned for each model, from this backend or another one."""


class Alone(Backend):
    """One model, trained with the ordinary module and torch's AdamW."""

    def __init__(self, model: SequenceModel, training: Training, device: torch.device) -> None:
        self.template, self.device, self.clip = model.to(device), device, training.clip
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        by_role = parameters_by_role(model)
        self.roles = list(by_role)
        self._attention_parameters = list(by_role.get("attention", {}).values())
        # The rate is a tensor, so that a captured step reads the new value when it is replayed.
        groups = [{"params": list(p.values()), "lr": torch.tensor(0.0, device=device)} for p in by_role.values()]
        betas, decay, capturable = training.betas, training.weight_decay, device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, betas=betas, weight_decay=decay, fused=True, capturable=capturable)

    def each(self, function: Callable[..., Any], *per_model: Tensor) -> Any:
        return apply_to_one(self.template, function, *per_model)

    def start_step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def update(
        self,
        losses: Tensor,
        rates: Tensor,
        counts: Tensor,
        trains_attention: bool | None,
        guides: Tensor | None = None,
    ) -> Tensor:
        if guides is None:
            losses.backward(torch.ones_like(losses))
        else:
            self._project(losses, guides, bool(trains_attention))
        if not trains_attention:
            # None and not zero, because weight decay and momentum change a parameter with a zero gradient.
            for parameter in self._attention_parameters:
                parameter.grad = None
        norm = nn.utils.clip_grad_norm_(self.template.parameters(), self.clip, foreach=True)
        for group, rate in zip(self.optimizer.param_groups, rates[0], strict=True):
            group["lr"].copy_(rate)
        self.optimizer.step()
        return norm[None]

    def _project(self, losses: Tensor, guides: Tensor, trains_attention: bool) -> None:
        left_out = set() if trains_attention else set(map(id, self._attention_parameters))
        trained = [parameter for parameter in self.template.parameters() if id(parameter) not in left_out]
        both = [torch.autograd.grad(one.sum(), trained, materialize_grads=True) for one in (losses, guides)]
        rest, guide = (torch.cat([gradient.flatten() for gradient in found])[None] for found in both)
        ends = project(rest, guide)[0].split([parameter.numel() for parameter in trained])
        for parameter, gradient in zip(trained, ends, strict=True):
            parameter.grad = gradient.view_as(parameter)

    @torch.no_grad()
    def finite(self) -> list[bool]:
        states = self.optimizer.state.values()
        found = [*self.template.parameters(), *(state["exp_avg"] for state in states)]
        largest = torch.stack([tensor.abs().amax() for tensor in found])
        squares = [state["exp_avg_sq"].amax() for state in states]
        is_finite = (largest < LARGEST).all() & (torch.stack(squares).isfinite().all() if squares else True)
        return [bool(is_finite)]

    def model(self, index: int) -> SequenceModel:
        return self.template

    def tensors(self) -> Tensors:
        names = {id(parameter): name for name, parameter in self.template.named_parameters()}
        optimizer = {
            f"{names[id(parameter)]}/{key}": value
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        return {"model": dict(self.template.state_dict()), "optimizer": optimizer, "random": random}

    def load(self, tensors: Tensors) -> None:
        self.template.load_state_dict(tensors["model"])
        parameters = dict(self.template.named_parameters())
        self.optimizer.state.clear()
        for name, value in tensors["optimizer"].items():
            parameter, _, key = name.rpartition("/")
            self.optimizer.state[parameters[parameter]][key] = value.to(self.device)
        torch.set_rng_state(tensors["random"]["cpu"])
        if self.device.type == "cuda" and "cuda" in tensors["random"]:
            torch.cuda.set_rng_state(tensors["random"]["cuda"], self.device)

    def tensors_of(self, index: int, counts: Sequence[int]) -> Tensors:
        return self.tensors()

    def load_each(self, tensors: Sequence[Tensors]) -> None:
        (only,) = tensors
        self.load(only)


def project(gradients: Tensor, guides: Tensor) -> Tensor:
    """Return gradients (S, P) without the part that opposes the guides (S, P), plus the guides."""
    opposed = (gradients * guides).sum(1, keepdim=True).clamp(max=0.0)
    share = opposed / guides.square().sum(1, keepdim=True).clamp(min=1e-30)
    return gradients - share * guides + guides


def parameters_by_role(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Return the parameters of a model by role and by name; each role can have its own learning rate."""
    roles: dict[str, dict[str, nn.Parameter]] = {"recurrence": {}, "rest": {}, "attention": {}}
    parts = [module for module in model.modules() if getattr(module, "role", None) in ("recurrence", "attention")]
    role_of = {id(parameter): str(part.role) for part in parts for parameter in part.parameters()}
    for name, parameter in model.named_parameters():
        roles[role_of.get(id(parameter), "rest")][name] = parameter
    return {role: parameters for role, parameters in roles.items() if parameters}
