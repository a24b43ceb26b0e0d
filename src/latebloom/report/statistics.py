"""Statistics over seeds: means with bootstrap intervals, and paired comparisons. Each seed gives one accuracy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

LEVEL = 0.95
SETTLED_AT = 0.05
"""The significance level."""
EXACT_UP_TO = 20
"""Up to this many shared seeds, all 2^n sign flips are counted."""
FLIPS_DRAWN = 2**20
"""With more seeds, this many random flips are drawn."""
RESAMPLES = 9_999
"""Of the bootstrap."""
LARGEST_KEPT = 500
"""The resamples of larger samples are drawn again for each of them, because they would take too much memory."""


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
    return Estimate(mean, *_bootstrap(sample), len(sample))


def student_interval(values: Iterable[float]) -> Estimate:
    """Return the mean and Student's 95% interval, which is not too narrow for few seeds; one seed has none."""
    from scipy.stats import t

    sample = np.array(list(values), dtype=float)
    mean, size = float(sample.mean()), len(sample)
    if size < 2:
        return Estimate(mean, None, None, size)
    half = float(t.ppf((1 + LEVEL) / 2, size - 1) * sample.std(ddof=1) / np.sqrt(size))
    return Estimate(mean, mean - half, mean + half, size)


def _bootstrap(sample: np.ndarray) -> tuple[float, float]:
    """Return the ends of the BCa bootstrap interval of the mean, with the resamples that scipy draws.

    scipy draws and sums the resamples of each sample anew; a report of many runs has thousands of samples of one size,
    and here each is one product with the same matrix.
    """
    from scipy.special import ndtr, ndtri

    size, mean = len(sample), sample.mean()
    means = np.concatenate([counts @ sample for counts in _resamples(size)]) / size
    rounding = 1e-12 * np.abs(sample).max()  # resamples with the same mean up to rounding are ties
    below, tied = (means < mean - rounding).sum(), (np.abs(means - mean) <= rounding).sum()
    bias = ndtri((below + tied / 2) / RESAMPLES)
    influence = sample - mean  # proportional to the jackknifed means
    squares = (influence**2).sum()
    acceleration = (influence**3).sum() / squares**1.5 / 6 if squares > 0 else 0.0
    if not np.isfinite(bias):  # all means are on one side: the percentiles themselves
        bias = acceleration = 0.0
    quantiles = bias + ndtri(np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    low, high = np.percentile(means, 100 * ndtr(bias + quantiles / (1 - acceleration * quantiles)))
    return float(low), float(high)


def _resamples(size: int) -> Iterable[np.ndarray]:
    """Yield matrices that hold how often each value of a sample is in each of the bootstrap's resamples."""
    return _small_resamples(size) if size <= LARGEST_KEPT else _drawn_resamples(size)


@lru_cache(maxsize=4)
def _small_resamples(size: int) -> list[np.ndarray]:
    return list(_drawn_resamples(size))


def _drawn_resamples(size: int) -> Iterable[np.ndarray]:
    rng = np.random.default_rng(0)
    rows = max(1, min(RESAMPLES, 2**22 // size))
    for start in range(0, RESAMPLES, rows):
        drawn = rng.integers(0, size, (min(rows, RESAMPLES - start), size))
        places = drawn + size * np.arange(len(drawn))[:, None]
        yield np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)


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


Arms = tuple[str, str, Mapping[int, float], Mapping[int, float]]
"""The names of two arms, and their values by seed."""


def compare_arms(*arms: *Arms) -> Comparison | None:
    """Compare two arms by seed; return None unless they share at least two seeds."""
    return compare_all([arms])[0]


def compare_all(pairs: Sequence[Arms]) -> list[Comparison | None]:
    """Compare pairs of arms; many at once are much faster than one after the other."""
    shared = [[np.array([arm[seed] for seed in paired(a, b)]) for arm in (a, b)] for _, _, a, b in pairs]
    differences = [x - y for x, y in shared]
    each = iter(sign_flip_tests([one for one in differences if len(one) > 1]))
    return [
        _comparison(first, second, x, y, next(each)) if len(x) > 1 else None
        for (first, second, _, _), (x, y) in zip(pairs, shared, strict=True)
    ]


def _comparison(first: str, second: str, x: np.ndarray, y: np.ndarray, p: float) -> Comparison:
    ahead, tied, dominance = int((x > y).sum()), int((x == y).sum()), float(np.sign(x[:, None] - y[None, :]).mean())
    return Comparison(first, second, mean_interval(x - y), ahead, tied, dominance, p, p, smallest_p(len(x)))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """Return a - b for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def smallest_p(seeds: int) -> float:
    """Return the smallest p value that the permutation test can give with so many seeds."""
    return 1 / (FLIPS_DRAWN + 1) if seeds > EXACT_UP_TO else min(1.0, 2.0 ** (1 - seeds))


def sign_flip_tests(several: Sequence[np.ndarray]) -> list[float]:
    """Return the p value of the two-sided sign-flip permutation test of the mean of each of several paired differences.

    Tests of one size share their random flips.
    """
    found = [1.0] * len(several)
    random: dict[int, list[int]] = {}
    for number, differences in enumerate(several):
        if not differences.any():
            continue
        if len(differences) <= EXACT_UP_TO:
            found[number] = _all_flips(differences)
        else:
            random.setdefault(len(differences), []).append(number)
    for numbers in random.values():
        for number, p in zip(numbers, _random_flips(np.stack([several[one] for one in numbers], 1)), strict=True):
            found[number] = p
    return found


def _least(differences: np.ndarray) -> np.ndarray:
    """Return the absolute sum that counts as equal to the observed one, or larger."""
    return np.abs(differences.sum(0)) - 1e-12 * np.abs(differences).sum(0)


def _all_flips(differences: np.ndarray) -> float:
    # Flipping the first sign too gives the same absolute sums. scipy's permutation test stores every difference of
    # every flip, which takes a second for 20 seeds, and a page has hundreds of tests.
    sums = differences[:1].astype(np.float64)
    for difference in differences[1:]:
        sums = np.concatenate([sums + difference, sums - difference])
    return float((np.abs(sums) >= _least(differences)).mean())


def _random_flips(differences: np.ndarray) -> list[float]:
    """Return the p values of tests of as many seeds each, one in each column."""
    rng = np.random.default_rng(0)
    least, found = _least(differences), np.ones(differences.shape[1])  # the observed signs count as one of the flips
    chunk = 2**16
    for _ in range(FLIPS_DRAWN // chunk):
        drawn = rng.integers(0, 2, (chunk, len(differences)))
        for part in np.array_split(drawn, 16):  # of a size that stays in the cache
            found += (np.abs((2.0 * part - 1) @ differences) >= least).sum(0)
    return (found / (FLIPS_DRAWN + 1)).tolist()


def holm(comparisons: Sequence[Comparison], left_out: int = 0) -> list[Comparison]:
    """Return the comparisons with p values corrected for multiple comparisons (Holm), also for those left out."""
    corrected = _step_down([one.p for one in comparisons], left_out)
    smallest = smallest_corrected([one.difference.seeds for one in comparisons], left_out)
    return [
        replace(one, p_corrected=p, smallest_corrected=least, together=len(comparisons) + left_out)
        for one, p, least in zip(comparisons, corrected, smallest, strict=True)
    ]


def smallest_corrected(shared_seeds: Sequence[int], left_out: int = 0) -> list[float]:
    """Return the smallest possible corrected p value of each comparison of a family, given its shared seeds."""
    return _step_down([smallest_p(seeds) for seeds in shared_seeds], left_out)


def seeds_to_settle(comparisons: int) -> int:
    """Return the number of shared seeds with which a family of so many comparisons can be significant."""
    enough = (seeds for seeds in range(2, EXACT_UP_TO + 1) if comparisons * smallest_p(seeds) < SETTLED_AT)
    return next(enough, EXACT_UP_TO + 1)


def _step_down(values: Sequence[float], left_out: int) -> list[float]:
    """Multiply each p value by the number of those that are not smaller, and keep the order; those left out count as
    not smaller than any."""
    order = np.argsort(values, kind="stable")
    steps = (left_out + np.arange(len(values), 0, -1)) * np.array(values)[order]
    corrected = np.empty(len(values))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, steps))
    return corrected.tolist()
