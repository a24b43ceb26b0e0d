"""Statistics over seeds: means with bootstrap intervals, and paired comparisons. Each seed gives one accuracy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isnan
from warnings import catch_warnings

import numpy as np

LEVEL = 0.95
SETTLED_AT = 0.05
"""The significance level."""
EXACT_UP_TO = 20
"""Up to this many shared seeds, all 2^n sign flips are counted."""
FLIPS_DRAWN = 2**20
"""With more seeds, this many random flips are drawn."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with its interval if there is one."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def mean_interval(values: Iterable[float]) -> Estimate:
    """Return the mean and its 95% bootstrap interval (bias-corrected and accelerated)."""
    return _mean_interval(tuple(map(float, values)))


@cache  # the same numbers appear in charts, tables and sentences
def _mean_interval(values: tuple[float, ...]) -> Estimate:
    sample = np.array(values)
    mean = float(sample.mean())
    if len(sample) == 1:
        return Estimate(mean, None, None, 1)
    if np.ptp(sample) == 0:
        return Estimate(mean, mean, mean, len(sample))
    # BCa is undefined if all jackknifed means are equal.
    low, high = next(ends for method in ("BCa", "percentile") if not isnan(sum(ends := _bootstrap(sample, method))))
    return Estimate(mean, low, high, len(sample))


def _bootstrap(sample: np.ndarray, method: str) -> tuple[float, float]:
    from scipy.stats import bootstrap

    with catch_warnings(action="ignore"):  # about degenerate samples; the caller checks for NaN
        rng = np.random.default_rng(0)
        found = bootstrap((sample,), np.mean, confidence_level=LEVEL, method=method, rng=rng).confidence_interval
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class Comparison:
    """Two arms compared over the seeds that both have."""

    first: str
    second: str
    difference: Estimate
    """The mean paired difference first - second."""
    ahead: int
    """The number of seeds in which the first arm is better."""
    tied: int
    dominance: float
    """Cliff's delta: how often a run of the first arm beats one of the second minus how often it loses; -1 to 1."""
    p: float
    """Of the two-sided sign-flip permutation test."""
    p_corrected: float
    """After Holm's correction for all comparisons of the family."""
    smallest_corrected: float
    """The smallest possible `p_corrected`: if all seeds of all comparisons agreed."""
    together: int = 1
    """The number of comparisons in the family."""


def compare_arms(first: str, second: str, a: Mapping[int, float], b: Mapping[int, float]) -> Comparison | None:
    """Compare two arms by seed; return None unless they share at least two seeds."""
    differences = paired(a, b)
    if len(differences) < 2:
        return None
    x, y = (np.array([arm[seed] for seed in differences]) for arm in (a, b))
    ahead, tied, p = int((x > y).sum()), int((x == y).sum()), sign_flip_test(x - y)
    dominance = float(np.sign(x[:, None] - y[None, :]).mean())
    return Comparison(first, second, mean_interval(x - y), ahead, tied, dominance, p, p, smallest_p(len(x)))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """Return a - b for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def smallest_p(seeds: int) -> float:
    """Return the smallest p value that the permutation test can give with so many seeds."""
    return 1 / (FLIPS_DRAWN + 1) if seeds > EXACT_UP_TO else min(1.0, 2.0 ** (1 - seeds))


def sign_flip_test(differences: np.ndarray) -> float:
    """Return the p value of the two-sided sign-flip permutation test of the mean paired difference."""
    if not differences.any():
        return 1.0
    rounding = 1e-12 * np.abs(differences).sum()  # sums that differ by less than this count as equal
    least = abs(differences.sum()) - rounding
    if len(differences) <= EXACT_UP_TO:
        # Flipping the first sign too gives the same absolute sums. scipy's permutation test stores every difference
        # of every flip, which takes a second for 20 seeds, and a page has hundreds of tests.
        sums = differences[:1].astype(np.float64)
        for difference in differences[1:]:
            sums = np.concatenate([sums + difference, sums - difference])
        return float((np.abs(sums) >= least).mean())
    rng = np.random.default_rng(0)
    chunk, found = 2**16, 1  # the observed signs count as one of the flips
    for _ in range(FLIPS_DRAWN // chunk):
        signs = 2.0 * rng.integers(0, 2, (chunk, len(differences))) - 1
        found += int((np.abs(signs @ differences) >= least).sum())
    return found / (FLIPS_DRAWN + 1)


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p values corrected for multiple comparisons (Holm)."""
    corrected = _step_down([one.p for one in comparisons])
    smallest = smallest_corrected([one.difference.seeds for one in comparisons])
    return [
        replace(one, p_corrected=p, smallest_corrected=least, together=len(comparisons))
        for one, p, least in zip(comparisons, corrected, smallest, strict=True)
    ]


def smallest_corrected(shared_seeds: Sequence[int]) -> list[float]:
    """Return the smallest possible corrected p value of each comparison of a family, given its shared seeds."""
    return _step_down([smallest_p(seeds) for seeds in shared_seeds])


def seeds_to_settle(comparisons: int) -> int:
    """Return the number of shared seeds with which a family of so many comparisons can be significant."""
    enough = (seeds for seeds in range(2, EXACT_UP_TO + 1) if comparisons * smallest_p(seeds) < SETTLED_AT)
    return next(enough, EXACT_UP_TO + 1)


def _step_down(values: Sequence[float]) -> list[float]:
    """Multiply each p value by the number of those that are not smaller, and keep the order."""
    order = np.argsort(values, kind="stable")
    steps = np.arange(len(values), 0, -1) * np.array(values)[order]
    corrected = np.empty(len(values))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, steps))
    return corrected.tolist()
