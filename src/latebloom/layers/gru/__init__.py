"""The GRU."""

from latebloom.layers.gru.layer import GRU, GRULayer

__all__ = ["GRU", "GRULayer"]
