"""DeltaNet (arXiv 2406.06484)."""

from dataclasses import dataclass
from typing import Literal

from latebloom.layers.delta.layer import DeltaRule, Gate


@dataclass(frozen=True, kw_only=True)
class DeltaNet(DeltaRule):
    """DeltaNet: S = (I - beta k k^T) S + beta k v^T."""

    name: Literal["delta_net"] = "delta_net"
    output_gate: Gate = "none"
    """The activation of the gate on the normalized outputs; none: no gate."""
