"""A recurrence, scores, a task and a study for Latebloom; the entry point imports this module."""

from latebloom_example import biased_sigmoid, gru, parity, study

__all__ = ["biased_sigmoid", "gru", "parity", "study"]
