"""A recurrence, scores, a task and a study for Latebloom; the entry point imports this module."""

from latebloom_example import biased_sigmoid, elman, parity, study

__all__ = ["biased_sigmoid", "elman", "parity", "study"]
