"""Attention: the normaliser (softmax) and the positions are parts of it."""

from latebloom.models.attention.softmax import SoftmaxAttention

__all__ = ["SoftmaxAttention"]
