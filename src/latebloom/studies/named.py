"""The package's own studies, each in a file of its own."""

from latebloom.studies import holding, paper, timing

__all__ = ["holding", "paper", "timing"]
