"""No positions."""

from dataclasses import dataclass
from typing import Literal

from latebloom.layers.attention.positions import PositionLayer, Positions


@dataclass(frozen=True, kw_only=True)
class NoPositions(Positions):
    """No positions: order comes from the recurrence before attention, and from causality."""

    name: Literal["none"] = "none"

    def build(self, width: int, heads: int) -> PositionLayer:
        return PositionLayer()
