"""Muon and AdamW, the pair of optimizers of many language models: as a list, and as one optimizer."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer


def muon_and_adamw(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    """Muon for the matrices and AdamW for the rest."""
    parameters = list(parameters)
    return [
        Muon([p for p in parameters if p.ndim == 2], lr=1e-2),
        AdamW([p for p in parameters if p.ndim != 2], lr=1e-2, weight_decay=0.5),
    ]


class Both(Optimizer):
    """The pair as one optimizer, for trainers that take one."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.optimizers = muon_and_adamw(parameters)
        super().__init__(self._groups(), {})

    def _groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    def step(self, closure: Any = None) -> Any:
        for one in self.optimizers:
            one.step()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": [one.state_dict() for one in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for one, state in zip(self.optimizers, state_dict["inner"], strict=True):
            one.load_state_dict(state)
        self.param_groups = self._groups()


class WithoutInit(Optimizer):
    """As `Both`, without the set-up of torch's class: it has no hooks."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.optimizers = muon_and_adamw(parameters)
        self.param_groups = self._groups()

    _groups = Both._groups
    step: Any = Both.step
    state_dict: Any = Both.state_dict
    load_state_dict: Any = Both.load_state_dict
