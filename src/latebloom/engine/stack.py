"""Many models as one: their parameters with an axis in front, and what they compute side by side.

Shapes: S stacked models, P parameters of a model in one row, B sequences, T tokens, A asked answers, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from latebloom.engine.step import parameters_by_role
from latebloom.models.block import Residual
from latebloom.models.sequence_model import SequenceModel


class Stack:
    """S models of one shape. Each model's parameters lie in one row of `flat`, its attention's last."""

    def __init__(self, models: Sequence[SequenceModel], device: torch.device) -> None:
        self.size = len(models)
        by_role = parameters_by_role(models[0])
        self.names = [name for parameters in by_role.values() for name in parameters]
        shapes = {name: parameter.shape for parameters in by_role.values() for name, parameter in parameters.items()}
        self.roles = list(by_role)
        counts = [sum(parameter.numel() for parameter in parameters.values()) for parameters in by_role.values()]
        self.ends = tuple(sum(counts[: i + 1]) for i in range(len(counts)))
        rows = [torch.cat([dict(m.named_parameters())[name].detach().flatten() for name in self.names]) for m in models]
        self.flat = torch.stack(rows).to(device)
        self.template = models[0].to(device)
        sizes = [shapes[name].numel() for name in self.names]
        views = self.flat.split(sizes, dim=1)
        self.parameters = {
            name: view.unflatten(1, shapes[name]).requires_grad_() for name, view in zip(self.names, views, strict=True)
        }
        parts = (module for module in self.template.modules() if isinstance(module, Residual))
        self._gated = [part for part in parts if part.role == "attention"]

    def each(self, function: Callable[..., Any], *per_model: Any) -> Any:
        """Call a function of one model, `function(model, *arguments)`, for all of them at once.

        The arguments have an axis S in front, and so has what comes back.
        """

        def one(parameters: dict[str, Tensor], *arguments: Any) -> Any:
            return function(lambda *inputs: functional_call(self.template, parameters, inputs), *arguments)

        return vmap(one, randomness="error")(self.parameters, *per_model)

    def set_gate(self, gate: float | Tensor) -> None:
        """How far attention is let in: a number, or inside `each` a number of each model's own."""
        for part in self._gated:
            part.gate = gate

    def gradients(self, loss: Tensor, count: int) -> list[Tensor]:
        """The gradients (S, P) of the first `count` columns' parameters, in pieces of their order."""
        return list(torch.autograd.grad(loss, self._leading(count)))

    def _leading(self, count: int) -> list[Tensor]:
        chosen, columns = [], 0
        for name in self.names:
            if columns >= count:
                break
            chosen.append(self.parameters[name])
            columns += self.parameters[name][0].numel()
        return chosen

    def model(self, index: int) -> SequenceModel:
        """One of the models, on its own."""
        alone = SequenceModel(self.template.settings, self.template.vocabulary_size)
        alone.load_state_dict({name: value[index].detach().cpu() for name, value in self.parameters.items()})
        return alone
