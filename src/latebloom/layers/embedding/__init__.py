"""Embedding of tokens."""

from latebloom.layers.embedding.embedding import Embedding

__all__ = ["Embedding"]
