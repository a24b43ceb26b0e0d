"""A recurrence, scores, a task and a study for Latebloom; the entry point imports this module."""

from latebloom_example import elman, parity, sigmoid, study

__all__ = ["elman", "parity", "sigmoid", "study"]
