"""Causal multi-head attention, and the families of scores and positions in it."""

from latebloom.layers.attention.alibi import Alibi
from latebloom.layers.attention.asentmax import ASEntmax
from latebloom.layers.attention.entmax import Entmax
from latebloom.layers.attention.forgetting import Forgetting
from latebloom.layers.attention.layer import RandomWindow, SelfAttention
from latebloom.layers.attention.learned import Learned
from latebloom.layers.attention.log_n import LogN
from latebloom.layers.attention.no_positions import NoPositions
from latebloom.layers.attention.positions import PositionLayer, Positions
from latebloom.layers.attention.randomised import Randomised
from latebloom.layers.attention.rotary import Rotary
from latebloom.layers.attention.scores import ScoreLayer, Scores
from latebloom.layers.attention.sigmoid import Sigmoid
from latebloom.layers.attention.softmax import Softmax
from latebloom.layers.attention.ssmax import SSMax
from latebloom.layers.attention.stick_breaking import StickBreaking
from latebloom.layers.attention.tiles import Tile, Visibility
from latebloom.layers.attention.top_k import TopK

__all__ = [
    "ASEntmax",
    "Alibi",
    "Entmax",
    "Forgetting",
    "Learned",
    "LogN",
    "NoPositions",
    "PositionLayer",
    "Positions",
    "RandomWindow",
    "Randomised",
    "Rotary",
    "SSMax",
    "ScoreLayer",
    "Scores",
    "SelfAttention",
    "Sigmoid",
    "Softmax",
    "StickBreaking",
    "Tile",
    "TopK",
    "Visibility",
]
