"""Exact binomial intervals (Clopper and Pearson), with the standard library only.

The bounds are quantiles of beta distributions; a bisection over the regularized incomplete beta function finds them.
scipy does this too, but evaluation runs where only torch is installed.
"""

from collections.abc import Callable
from functools import lru_cache
from math import exp, lgamma, log


@lru_cache(maxsize=4096)
def binomial_interval(correct: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval for the accuracy if `correct` of `total` answers are right."""
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"{correct} of {total} is not a count of right answers")
    tail = (1 - level) / 2
    low = 0.0 if correct == 0 else _bisect(lambda p: beta_cdf(p, correct, total - correct + 1) < tail)
    high = 1.0 if correct == total else _bisect(lambda p: beta_cdf(p, correct + 1, total - correct) < 1 - tail)
    return low, high


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, from its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below the mean; use the symmetry above it
        return 1 - beta_cdf(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    # Lentz's method: numerator and denominator as running ratios, kept away from zero.
    tiny = 1e-300
    fraction, ratio, inverse = 1.0, 1.0, 0.0
    for i in range(1, 10_000):
        half = i // 2
        if i == 1:
            term = 1.0
        elif i % 2:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        else:
            half -= 1
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        inverse = 1.0 / ((1.0 + term * inverse) or tiny)
        ratio = (1.0 + term / ratio) or tiny
        fraction *= ratio * inverse
        if i > 2 and abs(ratio * inverse - 1.0) < 1e-15:
            break
    return min(1.0, front * (fraction - 1.0))


def _bisect(is_below: Callable[[float], bool]) -> float:
    """Return the point in (0, 1) up to which a condition holds."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2
