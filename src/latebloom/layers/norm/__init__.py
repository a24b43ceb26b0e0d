"""Layer norm."""

from latebloom.layers.norm.norm import Norm

__all__ = ["Norm"]
