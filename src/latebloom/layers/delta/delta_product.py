"""DeltaProduct (arXiv 2502.10297)."""

from dataclasses import dataclass
from typing import Literal

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

    @property
    def steps_per_token(self) -> int:
        return self.steps

    @property
    def decays(self) -> int:
        return super().decays if self.decay else 0
