"""Exact binomial intervals (Clopper and Pearson), from the standard library alone.

The bounds are where the observed count sits in a tail of 2.5%; the tail is a sum of binomial terms, and a
bisection finds them. scipy does this too, but evaluation runs where only torch is installed.
"""

from collections.abc import Callable
from math import exp, lgamma, log


def binomial_interval(correct: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """The interval for the accuracy behind `correct` of `total`."""
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"{correct} of {total} is not a count of right answers")
    tail = (1 - level) / 2
    low = 0.0 if correct == 0 else _bisect(lambda p: _upper_tail(correct, total, p) < tail)
    high = 1.0 if correct == total else _bisect(lambda p: 1 - _upper_tail(correct + 1, total, p) > tail)
    return low, high


def _upper_tail(at_least: int, total: int, p: float) -> float:
    """P(X >= at_least) for a binomial X."""
    log_p, log_q = log(p), log(1 - p)
    terms = (
        exp(lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1) + k * log_p + (total - k) * log_q)
        for k in range(at_least, total + 1)
    )
    return min(1.0, sum(terms))


def _bisect(is_below: Callable[[float], bool]) -> float:
    """The point in (0, 1) where a condition that holds below it stops holding."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2
