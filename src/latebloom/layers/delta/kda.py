"""Kimi Delta Attention (arXiv 2510.26692).

The projections of the decay and of the gate have full rank here, where the original has a rank of width / heads.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from latebloom.layers.delta.layer import DecayingDeltaRule, DecayOf, Gate


@dataclass(frozen=True, kw_only=True)
class KDA(DecayingDeltaRule):
    """Kimi Delta Attention: S = (I - beta k k^T) diag(alpha) S + beta k v^T, with a decay per key channel."""

    decay_of: ClassVar[DecayOf] = "channels"

    name: Literal["kda"] = "kda"
    output_gate: Gate = "sigmoid"
    """The activation of the gate on the normalized outputs; none: no gate."""
