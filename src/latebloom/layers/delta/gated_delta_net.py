"""Gated DeltaNet (arXiv 2412.06464)."""

from dataclasses import dataclass
from typing import Literal

from latebloom.layers.delta.layer import DecayingDeltaRule


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(DecayingDeltaRule):
    """Gated DeltaNet: S = alpha (I - beta k k^T) S + beta k v^T, with a decay alpha per head and token."""

    name: Literal["gated_delta_net"] = "gated_delta_net"
