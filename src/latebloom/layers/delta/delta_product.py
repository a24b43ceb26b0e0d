"""DeltaProduct (arXiv 2502.10297)."""

from dataclasses import dataclass, fields
from typing import Literal

from latebloom.errors import ConfigError
from latebloom.fields import Count
from latebloom.layers.delta.layer import DecayingDeltaRule


@dataclass(frozen=True, kw_only=True)
class DeltaProduct(DecayingDeltaRule):
    """DeltaProduct: several delta steps per token, whose product can rotate the state.

    State noise is added at the last step of a token.
    """

    name: Literal["delta_product"] = "delta_product"
    steps: Count = 2
    """Delta steps per token (n_h in the literature)."""
    decay: bool = False
    """Let the state decay once per token, as Gated DeltaProduct does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {field.name: field.default for field in fields(self)}
        for name in ("rate_range", "step_range"):
            if not self.decay and getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name}: it has no effect without decay; set decay=true, or leave it out")

    @property
    def steps_per_token(self) -> int:
        return self.steps

    @property
    def decays(self) -> int:
        return super().decays if self.decay else 0
