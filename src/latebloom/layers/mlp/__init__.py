"""Linear map and MLP."""

from latebloom.layers.mlp.mlp import MLP, Linear

__all__ = ["MLP", "Linear"]
