"""The studies of this package, one file each."""

from latebloom.studies import holding, paper, timing

__all__ = ["holding", "paper", "timing"]
