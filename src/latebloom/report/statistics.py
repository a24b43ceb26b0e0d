"""What seeds say: means with intervals, and paired comparisons. An accuracy here is one number a seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isnan
from warnings import catch_warnings, simplefilter

import numpy as np

LEVEL = 0.95
SETTLED_AT = 0.05
"""A difference with a p value below this is not put down to chance."""
EXACT_UP_TO = 20
"""Shared seeds up to which every one of the 2^n sign flips is counted."""
FLIPS_DRAWN = 2**20
"""Of more seeds."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with its interval if there is more than one."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def mean_interval(values: Iterable[float]) -> Estimate:
    """The mean and its 95% bootstrap interval (bias-corrected and accelerated)."""
    return _mean_interval(tuple(map(float, values)))


@cache  # the same numbers stand in charts, tables and sentences
def _mean_interval(values: tuple[float, ...]) -> Estimate:
    sample = np.array(values)
    mean = float(sample.mean())
    if len(sample) == 1:
        return Estimate(mean, None, None, 1)
    if np.ptp(sample) == 0:
        return Estimate(mean, mean, mean, len(sample))
    low, high = _bootstrap(sample, "BCa")
    if isnan(low) or isnan(high):  # BCa needs jackknifed means that differ
        low, high = _bootstrap(sample, "percentile")
    return Estimate(mean, low, high, len(sample))


def _bootstrap(sample: np.ndarray, method: str) -> tuple[float, float]:
    from scipy.stats import bootstrap

    with catch_warnings():
        simplefilter("ignore")  # about samples that are too alike; the caller looks at what came out
        found = bootstrap(
            (sample,), np.mean, confidence_level=LEVEL, method=method, rng=np.random.default_rng(0)
        ).confidence_interval
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class Comparison:
    """Two arms over the seeds that both have."""

    first: str
    second: str
    difference: Estimate
    """The mean of first minus second, seed by seed."""
    ahead: int
    """Seeds in which the first is ahead."""
    tied: int
    dominance: float
    """Cliff's delta: how often a run of the first beats one of the second, less how often it is beaten; -1 to 1."""
    p: float
    """The sign-flip test of no difference, two-sided."""
    p_corrected: float
    """After Holm's correction for all comparisons made together."""
    smallest_corrected: float
    """What `p_corrected` could be at best: if every seed of every comparison said the same."""
    together: int = 1
    """How many comparisons it was corrected for."""

    @property
    def smallest_p(self) -> float:
        """What the test could give at best with so many seeds."""
        return _smallest_p(self.difference.seeds)


def compare_arms(first: str, second: str, a: Mapping[int, float], b: Mapping[int, float]) -> Comparison | None:
    """Two arms by seed; None unless they share two seeds or more."""
    ahead = paired(a, b)
    if len(ahead) < 2:
        return None
    x, y = (np.array([arm[seed] for seed in ahead]) for arm in (a, b))
    p = sign_flip_test(x - y)
    return Comparison(
        first=first,
        second=second,
        difference=mean_interval(x - y),
        ahead=int((x > y).sum()),
        tied=int((x == y).sum()),
        dominance=float(np.sign(x[:, None] - y[None, :]).mean()),
        p=p,
        p_corrected=p,
        smallest_corrected=_smallest_p(len(ahead)),
    )


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """The first less the second, of the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def _smallest_p(seeds: int) -> float:
    """Of the sign-flip test: two of all flips, or the one that was seen of those that are drawn and itself."""
    if seeds > EXACT_UP_TO:
        return 1 / (FLIPS_DRAWN + 1)
    return min(1.0, 2.0 ** (1 - seeds))


def sign_flip_test(differences: np.ndarray) -> float:
    """How often a mean at least this far from 0 comes up when each difference's sign is a coin's throw."""
    if not differences.any():
        return 1.0
    rounding = 1e-12 * np.abs(differences).sum()  # sums that differ by this much alone are as far from 0
    least = abs(differences.sum()) - rounding
    if len(differences) <= EXACT_UP_TO:
        return float((np.abs(_sums_of_all_flips(differences)) >= least).mean())
    rng = np.random.default_rng(0)
    chunk = 2**16
    found = 1  # the one that was seen
    for _ in range(FLIPS_DRAWN // chunk):
        signs = 2.0 * rng.integers(0, 2, (chunk, len(differences))) - 1
        found += int((np.abs(signs @ differences) >= least).sum())
    return found / (FLIPS_DRAWN + 1)


def _sums_of_all_flips(differences: np.ndarray) -> np.ndarray:
    """The sum of each flip, but for those that flip the first: they have the same size. scipy's test lays out every
    difference of every flip, which for 20 seeds takes a second, and a page has hundreds of tests."""
    sums = differences[:1].astype(np.float64)
    for difference in differences[1:]:
        sums = np.concatenate([sums + difference, sums - difference])
    return sums


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with their p values corrected for being made together (Holm)."""
    corrected = _step_down([one.p for one in comparisons])
    smallest = smallest_corrected([one.difference.seeds for one in comparisons])
    return [
        replace(one, p_corrected=p, smallest_corrected=least, together=len(comparisons))
        for one, p, least in zip(comparisons, corrected, smallest, strict=True)
    ]


def smallest_corrected(shared_seeds: Sequence[int]) -> list[float]:
    """What the corrected p of comparisons over so many seeds could be at best, made together."""
    return _step_down([_smallest_p(seeds) for seeds in shared_seeds])


def seeds_to_settle(comparisons: int) -> int:
    """With how many shared seeds a difference can be told from chance, corrected for so many comparisons."""
    enough = (seeds for seeds in range(2, EXACT_UP_TO + 1) if comparisons * _smallest_p(seeds) < SETTLED_AT)
    return next(enough, EXACT_UP_TO + 1)


def _step_down(values: Sequence[float]) -> list[float]:
    """Each p value times how many are not smaller, and no less than what a smaller one became."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    corrected, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * values[i]))
        corrected[i] = largest
    return corrected
