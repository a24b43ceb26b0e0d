"""Evaluation: accuracy by length."""

from latebloom.evaluation.accuracy import Count, count_correct
from latebloom.evaluation.evaluate import evaluate
from latebloom.evaluation.interval import binomial_interval
from latebloom.evaluation.result import Evaluation
from latebloom.evaluation.settings import Evaluating

__all__ = ["Count", "Evaluating", "Evaluation", "binomial_interval", "count_correct", "evaluate"]
