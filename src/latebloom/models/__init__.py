"""Sequence models: blocks of recurrence, attention and MLP."""

from latebloom.models.match import match_parameters
from latebloom.models.sequence_model import SequenceModel
from latebloom.models.settings import Attention, Model, hybrid, lstm, transformer

__all__ = ["Attention", "Model", "SequenceModel", "hybrid", "lstm", "match_parameters", "transformer"]
