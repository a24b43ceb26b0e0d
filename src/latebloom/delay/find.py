"""Where attention stands in a model.

A part that can be held back says so itself: it has a `role` and a `gate` (1.0 open, 0.0 left out, a tensor
scales it), as the residual parts of this package's models do.
"""

from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor, nn

from latebloom.errors import ConfigError


class Gated(Protocol):
    """A module that adds `gate` times something to its input."""

    role: str
    gate: float | Tensor


@dataclass(frozen=True)
class Site:
    """One place where attention enters the stream."""

    name: str
    """Its path in the model, as in `named_modules`."""
    module: nn.Module
    """The gated part, with its norm."""

    @property
    def gated(self) -> Gated:
        return cast(Gated, self.module)


def find_attention(model: nn.Module) -> list[Site]:
    """Every gated attention part of the model, in order; an error if there is none."""
    sites = [
        Site(name, module)
        for name, module in model.named_modules()
        if getattr(module, "role", None) == "attention" and hasattr(module, "gate")
    ]
    if not sites:
        raise ConfigError(
            f"delay: no attention was found in {type(model).__name__}; "
            "a part that can be held back has `role = 'attention'` and a `gate`"
        )
    return sites
