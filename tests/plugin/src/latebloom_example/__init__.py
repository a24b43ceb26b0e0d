"""A recurrence, scores, a task and a study for Latebloom; the entry point imports this module."""

from latebloom_example import gru, parity, sigmoid, study

__all__ = ["gru", "parity", "sigmoid", "study"]
