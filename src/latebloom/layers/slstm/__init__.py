"""The sLSTM."""

from latebloom.layers.slstm.layer import SLSTM, SLSTMLayer

__all__ = ["SLSTM", "SLSTMLayer"]
