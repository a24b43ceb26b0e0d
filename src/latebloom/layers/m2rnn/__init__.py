"""The M²RNN."""

from latebloom.layers.m2rnn.layer import M2RNN, M2RNNLayer

__all__ = ["M2RNN", "M2RNNLayer"]
