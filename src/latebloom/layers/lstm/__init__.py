"""The LSTM."""

from latebloom.layers.lstm.layer import LSTM, LSTMLayer

__all__ = ["LSTM", "LSTMLayer"]
