"""Many models as one program: parameters with a leading axis, `vmap` over it, and one optimizer update.

Shapes: S models, P parameters of a model in one row, R roles.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from latebloom.engine.adamw import adamw_
from latebloom.engine.backend import LARGEST, Backend, parameters_by_role, project
from latebloom.engine.checkpoint import Tensors
from latebloom.engine.settings import Training
from latebloom.evaluation.accuracy import apply_to_each
from latebloom.layers.lstm.operation import ignore_copied_weights
from latebloom.models.sequence_model import SequenceModel


class Stacked(Backend):
    """S models of one shape. The parameters of a model are one row of `flat`; those of attention are last."""

    def __init__(self, models: Sequence[SequenceModel], training: Training, device: torch.device) -> None:
        by_role = parameters_by_role(models[0])
        shapes = {name: p.shape for parameters in by_role.values() for name, p in parameters.items()}
        rows = [torch.cat([model.get_parameter(name).detach().flatten() for name in shapes]) for model in models]
        self.template, self.roles, self.training = models[0].to(device), list(by_role), training
        if device.type == "cuda":
            ignore_copied_weights()
        sizes = [sum(p.numel() for p in parameters.values()) for parameters in by_role.values()]
        self.ends = tuple(accumulate(sizes))
        """The columns of `flat` at which the roles end."""
        self.flat = torch.stack(rows).to(device)
        views = self.flat.split([shape.numel() for shape in shapes.values()], dim=1)
        self.parameters: dict[str, Tensor] = {
            name: view.unflatten(1, shape).requires_grad_()
            for (name, shape), view in zip(shapes.items(), views, strict=True)
        }
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._shapes, self._names = shapes, [list(parameters) for parameters in by_role.values()]
        self._before_attention = len(shapes) - len(by_role.get("attention", {}))

    def each(self, function: Callable[..., Any], *per_model: Tensor) -> Any:
        return apply_to_each(self.template, self.parameters, function, *per_model)

    def update(
        self,
        losses: Tensor,
        rates: Tensor,
        counts: Tensor,
        trains_attention: bool | None,
        guides: Tensor | None = None,
    ) -> Tensor:
        ends, trained = self.ends, list(self.parameters.values())
        if trains_attention is False:
            ends, trained = ends[:-1], trained[: self._before_attention]
        gradients = torch.autograd.grad(losses, trained, torch.ones_like(losses))
        if guides is not None:
            found = torch.autograd.grad(guides, trained, torch.ones_like(guides), materialize_grads=True)
            rows = [torch.cat([gradient.flatten(1) for gradient in each], dim=1) for each in (gradients, found)]
            if trains_attention is None:  # attention that is not trained opposes nothing
                for row in rows:
                    row[:, ends[-2] :] *= (counts[:, -1:] > 0).float()
            gradients = [project(*rows)]
        return adamw_(
            self.training.betas, self.training.weight_decay, self.training.clip, self.flat, gradients, self.first,
            self.second, ends=ends, rates=rates[:, : len(ends)], counts=counts[:, : len(ends)],
            some_rest=trains_attention is None,
        )  # fmt: skip

    def finite(self) -> list[bool]:
        # A NaN is the largest of all, and not below the bound.
        largest = torch.maximum(self.flat.detach().abs().amax(dim=1), self.first.abs().amax(dim=1))
        return ((largest < LARGEST) & self.second.amax(dim=1).isfinite()).tolist()

    def model(self, index: int) -> SequenceModel:
        single = SequenceModel(self.template.settings, self.template.vocabulary_size)
        single.load_state_dict({name: value[index].detach().cpu() for name, value in self.parameters.items()})
        return single

    def parameters_of(self, index: int) -> dict[str, Tensor]:
        return {name: each[index] for name, each in self.parameters.items()}

    def tensors(self) -> Tensors:
        return {"stack": {"parameters": self.flat, "first": self.first, "second": self.second}}

    def load(self, tensors: Tensors) -> None:
        with torch.no_grad():
            for name, value in self.tensors()["stack"].items():
                value.copy_(tensors["stack"][name])

    def tensors_of(self, index: int, counts: Sequence[int]) -> Tensors:
        done = {name: count for ends, count in zip(self._names, counts, strict=True) for name in ends}
        rows = {key: self._by_name(row[index]) for key, row in (("exp_avg", self.first), ("exp_avg_sq", self.second))}
        optimizer = {f"{name}/{key}": row[name] for key, row in rows.items() for name in done if done[name]}
        optimizer |= {f"{name}/step": torch.tensor(float(count)) for name, count in done.items() if count}
        model = {**self.template.state_dict(), **self._by_name(self.flat[index])}
        return {"model": model, "optimizer": optimizer, "random": {"cpu": torch.get_rng_state()}}

    def load_each(self, tensors: Sequence[Tensors]) -> None:
        def row(found: dict[str, Tensor], suffix: str) -> Tensor:
            parts = [found.get(f"{name}{suffix}", torch.zeros(shape)) for name, shape in self._shapes.items()]
            return torch.cat([part.flatten() for part in parts])

        sources = (
            (self.flat, "model", ""),
            (self.first, "optimizer", "/exp_avg"),
            (self.second, "optimizer", "/exp_avg_sq"),
        )
        with torch.no_grad():
            for target, file, suffix in sources:
                target.copy_(torch.stack([row(one[file], suffix) for one in tensors]))

    def _by_name(self, row: Tensor) -> dict[str, Tensor]:
        """Return the tensors of one model from its row (P,)."""
        parts = row.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.unflatten(0, shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
