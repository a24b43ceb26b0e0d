"""The minGRU."""

from latebloom.layers.min_gru.layer import MinGRU, MinGRULayer

__all__ = ["MinGRU", "MinGRULayer"]
