"""Causal multi-head attention, and the families of scores and positions in it."""

from latebloom.layers.attention.layer import SelfAttention
from latebloom.layers.attention.learned import Learned
from latebloom.layers.attention.log_n import LogN
from latebloom.layers.attention.no_positions import NoPositions
from latebloom.layers.attention.positions import PositionLayer, Positions
from latebloom.layers.attention.rotary import Rotary
from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.softmax import Softmax

__all__ = [
    "Learned",
    "LogN",
    "NoPositions",
    "PositionLayer",
    "Positions",
    "Rotary",
    "ScoreLayer",
    "Scores",
    "SelfAttention",
    "Softmax",
]
