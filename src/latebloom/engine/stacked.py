"""Many models as one program: parameters with a leading axis, `vmap` over it, and one optimizer update.

Shapes: S models, P parameters of a model in one row, R roles.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from latebloom.engine.adamw import AdamW, adamw_
from latebloom.engine.backend import Backend, parameters_by_role
from latebloom.engine.settings import Training
from latebloom.models.sequence_model import SequenceModel


class Stacked(Backend):
    """S models of one shape. The parameters of a model are one row of `flat`; those of attention are last."""

    def __init__(self, models: Sequence[SequenceModel], training: Training, device: torch.device) -> None:
        by_role = parameters_by_role(models[0])
        shapes = {name: p.shape for parameters in by_role.values() for name, p in parameters.items()}
        rows = [torch.cat([dict(m.named_parameters())[name].detach().flatten() for name in shapes]) for m in models]
        super().__init__(models[0].to(device))
        if device.type == "cuda":
            # cuDNN trains widths that the fused LSTM does not take. It copies the weights on every call because they
            # are slices of the stack; its warning is not actionable. The filter stays, because one around each call
            # would make Python repeat other warnings.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        self.roles, self.clip = list(by_role), training.clip
        counts = [sum(p.numel() for p in parameters.values()) for parameters in by_role.values()]
        self.ends = tuple(sum(counts[: i + 1]) for i in range(len(counts)))
        """The columns of `flat` at which the roles end."""
        self.flat = torch.stack(rows).to(device)
        views = self.flat.split([shape.numel() for shape in shapes.values()], dim=1)
        self.parameters = {
            name: view.unflatten(1, shape).requires_grad_()
            for (name, shape), view in zip(shapes.items(), views, strict=True)
        }
        self.first, self.second, self._gradients = (torch.zeros_like(self.flat) for _ in range(3))
        self._adamw = AdamW(training.betas, training.weight_decay)

    def each(self, function: Callable[..., Any], *per_model: Tensor) -> Any:
        def apply(parameters: dict[str, Tensor], *arguments: Any) -> Any:
            return function(lambda *inputs: functional_call(self.template, parameters, inputs), *arguments)

        return vmap(apply, randomness="error")(self.parameters, *per_model)

    def update(self, losses: Tensor, rates: Tensor, counts: Tensor, trains_attention: bool | None) -> Tensor:
        end = self.ends[-2] if trains_attention is False else self.ends[-1]
        ends = tuple(e for e in self.ends if e <= end)
        found = torch.autograd.grad(losses.sum(), self._leading(end))
        gradients = self._gradients[:, :end]
        torch.cat([gradient.flatten(1) for gradient in found], dim=1, out=gradients)
        norms = self._norms(gradients, counts, trains_attention)
        adamw_(
            self._adamw, self.flat, self._gradients, self.first, self.second, ends=ends,
            scale=(self.clip / (norms + 1e-6)).clamp(max=1.0),
            rates=rates[:, : len(ends)], counts=counts[:, : len(ends)],
        )  # fmt: skip
        return norms

    def _leading(self, end: int) -> list[Tensor]:
        """Return the parameters in the columns up to `end`."""
        chosen, columns = [], 0
        for parameter in self.parameters.values():
            if columns >= end:
                break
            chosen.append(parameter)
            columns += parameter[0].numel()
        return chosen

    def _norms(self, gradients: Tensor, counts: Tensor, trains_attention: bool | None) -> Tensor:
        """Return the norm (S,) of each model's gradient, without the attention that is not trained."""
        if trains_attention is not None:
            return torch.linalg.vector_norm(gradients, dim=1)
        start = self.ends[-2]
        rest, attention = (torch.linalg.vector_norm(part, dim=1) for part in gradients.tensor_split([start], dim=1))
        return torch.hypot(rest, torch.where(counts[:, -1] > 0, attention, 0.0))

    def reset_attention(self, index: int) -> None:
        """Do nothing: the moments of parameters that were not trained are still zero."""

    def finite(self) -> list[bool]:
        return self.flat.isfinite().all(dim=1).tolist()

    def model(self, index: int) -> SequenceModel:
        single = SequenceModel(self.template.settings, self.template.vocabulary_size)
        single.load_state_dict({name: value[index].detach().cpu() for name, value in self.parameters.items()})
        return single

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"stack": {"parameters": self.flat, "first": self.first, "second": self.second}}

    def load(self, tensors: dict[str, dict[str, Tensor]]) -> None:
        stack = tensors["stack"]
        with torch.no_grad():
            self.flat.copy_(stack["parameters"])
        self.first.copy_(stack["first"])
        self.second.copy_(stack["second"])
