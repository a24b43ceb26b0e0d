"""State space models: Mamba-2 and Mamba-3."""

from latebloom.layers.ssm.mamba2 import Mamba2
from latebloom.layers.ssm.mamba3 import Mamba3

__all__ = ["Mamba2", "Mamba3"]
