"""Many models as one program: parameters with a leading axis, `vmap` over it, and one optimizer update.

Shapes: S models, P parameters of a model in one row, R roles.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from latebloom.engine.adamw import adamw_
from latebloom.engine.backend import LARGEST, Backend, parameters_by_role
from latebloom.engine.checkpoint import Tensors
from latebloom.engine.settings import Training
from latebloom.models.sequence_model import SequenceModel


class Stacked(Backend):
    """S models of one shape. The parameters of a model are one row of `flat`; those of attention are last."""

    def __init__(self, models: Sequence[SequenceModel], training: Training, device: torch.device) -> None:
        by_role = parameters_by_role(models[0])
        shapes = {name: p.shape for parameters in by_role.values() for name, p in parameters.items()}
        rows = [torch.cat([model.get_parameter(name).detach().flatten() for name in shapes]) for model in models]
        self.template, self.roles, self.training = models[0].to(device), list(by_role), training
        if device.type == "cuda":
            # cuDNN trains widths that the fused LSTM does not take. It copies the weights on every call because they
            # are slices of the stack; its warning is not actionable. The filter stays, because one around each call
            # would make Python repeat other warnings.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        sizes = [sum(p.numel() for p in parameters.values()) for parameters in by_role.values()]
        self.ends = tuple(accumulate(sizes))
        """The columns of `flat` at which the roles end."""
        self.flat = torch.stack(rows).to(device)
        views = self.flat.split([shape.numel() for shape in shapes.values()], dim=1)
        self.parameters = {
            name: view.unflatten(1, shape).requires_grad_()
            for (name, shape), view in zip(shapes.items(), views, strict=True)
        }
        self.first, self.second, self._gradients = (torch.zeros_like(self.flat) for _ in range(3))
        self._before_attention = len(shapes) - len(by_role.get("attention", {}))

    def each(self, function: Callable[..., Any], *per_model: Tensor) -> Any:
        def apply(parameters: dict[str, Tensor], *arguments: Any) -> Any:
            return function(lambda *inputs: functional_call(self.template, parameters, inputs), *arguments)

        return vmap(apply, randomness="error")(self.parameters, *per_model)

    def update(self, losses: Tensor, rates: Tensor, counts: Tensor, trains_attention: bool | None) -> Tensor:
        ends, trained = self.ends, list(self.parameters.values())
        if trains_attention is False:
            ends, trained = ends[:-1], trained[: self._before_attention]
        found = torch.autograd.grad(losses.sum(), trained)
        gradients = self._gradients[:, : ends[-1]]
        torch.cat([gradient.flatten(1) for gradient in found], dim=1, out=gradients)
        if trains_attention is None:  # attention that is not trained does not count
            rest, attention = (
                torch.linalg.vector_norm(part, dim=1) for part in gradients.tensor_split([ends[-2]], dim=1)
            )
            norms = torch.hypot(rest, torch.where(counts[:, -1] > 0, attention, 0.0))
        else:
            norms = torch.linalg.vector_norm(gradients, dim=1)
        adamw_(
            self.training.betas, self.training.weight_decay, self.flat, self._gradients, self.first, self.second,
            ends=ends, scale=(self.training.clip / (norms + 1e-6)).clamp(max=1.0),
            rates=rates[:, : len(ends)], counts=counts[:, : len(ends)],
        )  # fmt: skip
        return norms

    def finite(self) -> list[bool]:
        # A NaN is the largest of all, and not below the bound.
        largest = torch.maximum(self.flat.detach().abs().amax(dim=1), self.first.abs().amax(dim=1))
        return ((largest < LARGEST) & self.second.amax(dim=1).isfinite()).tolist()

    def model(self, index: int) -> SequenceModel:
        single = SequenceModel(self.template.settings, self.template.vocabulary_size)
        single.load_state_dict({name: value[index].detach().cpu() for name, value in self.parameters.items()})
        return single

    def tensors(self) -> Tensors:
        return {"stack": {"parameters": self.flat, "first": self.first, "second": self.second}}

    def load(self, tensors: Tensors) -> None:
        with torch.no_grad():
            for name, value in self.tensors()["stack"].items():
                value.copy_(tensors["stack"][name])
