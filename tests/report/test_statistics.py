"""Intervals, tests and corrections, each against an oracle that was written another way."""

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, norm

from latebloom.report.statistics import (
    SETTLED_AT,
    Comparison,
    compare_arms,
    holm,
    mean_interval,
    seeds_to_settle,
    sign_flip_tests,
    smallest_p,
)

accuracies = st.integers(0, 64).map(lambda count: count / 64)


def exact_interval(values: list[float]) -> tuple[float, float]:
    """The bias-corrected and accelerated interval of the mean from all n^n resamples, by its definition."""
    sample = np.array(values)
    means = np.sort([np.mean(draw) for draw in product(sample, repeat=len(sample))])
    center = norm.ppf(((means < sample.mean() - 1e-12).mean() + (means <= sample.mean() + 1e-12).mean()) / 2)
    left_out = np.array([np.delete(sample, i).mean() for i in range(len(sample))])
    pulls = left_out.mean() - left_out
    acceleration = (pulls**3).sum() / (6 * (pulls**2).sum() ** 1.5)
    places = [norm.cdf(center + (center + z) / (1 - acceleration * (center + z))) for z in norm.ppf([0.025, 0.975])]
    low, high = np.quantile(means, places)
    return float(low), float(high)


@pytest.mark.parametrize(
    "values",
    [[0.98, 0.94, 0.99, 1.0, 0.96], [0.2, 0.9, 0.35, 0.5, 0.41], [1.0, 1.0, 1.0, 0.9, 1.0], [0.1, 0.2, 0.4, 0.8, 0.9]],
)
def test_the_interval_is_that_of_all_resamples(values):
    found = mean_interval(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.seeds == 5
    spread = max(values) - min(values)
    assert (found.low, found.high) == pytest.approx(exact_interval(values), abs=0.04 * spread)


@settings(max_examples=25)
@given(st.lists(accuracies, min_size=2, max_size=12))
def test_an_interval_is_a_pair_of_numbers_within_the_values(values):
    found = mean_interval(values)
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.high <= max(values)
    assert found == mean_interval(list(values))


def test_one_seed_has_no_interval_and_equal_seeds_have_none_to_speak_of():
    one = mean_interval([0.7])
    assert (one.mean, one.low, one.high, one.seeds) == (0.7, None, None, 1)
    same = mean_interval([0.7, 0.7, 0.7])
    assert (same.low, same.high) == (pytest.approx(0.7), pytest.approx(0.7))


@settings(max_examples=30)
@given(st.lists(st.integers(-64, 64).map(lambda n: n / 64), min_size=2, max_size=9))
def test_the_sign_flip_test_counts_all_flips(differences):
    seen = abs(sum(differences))
    flips = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    expected = sum(flip >= seen - 1e-9 for flip in flips) / len(flips)
    assert sign_flip_tests([np.array(differences)])[0] == pytest.approx(expected)


@pytest.mark.parametrize(("seeds", "within"), [(18, 1e-12), (20, 1e-12), (21, 0.003), (30, 0.003)])
def test_all_flips_are_counted_for_twenty_seeds_and_drawn_for_more(seeds, within):
    whole = np.random.default_rng(5).integers(-4, 8, seeds)
    ways = np.ones(1)  # to each sum of the differences with signs: the coefficients of a product of polynomials
    for one in whole:
        ways = np.convolve(ways, np.eye(2 * abs(one) + 1)[0] + np.eye(2 * abs(one) + 1)[-1])
    sums = np.arange(len(ways)) - len(ways) // 2
    expected = ways[np.abs(sums) >= abs(whole.sum())].sum() / 2.0**seeds
    assert 0.001 < expected < 0.9
    assert sign_flip_tests([whole / 1024])[0] == pytest.approx(expected, abs=within)


def test_sums_that_differ_by_rounding_alone_are_as_far_from_zero():
    whole = np.array([1, -2, 1, 2, -1, 0])
    assert sign_flip_tests([0.1 * whole, whole]) == [1, 1]


@given(st.lists(st.tuples(accuracies, accuracies), min_size=2, max_size=8))
@settings(max_examples=25)
def test_dominance_is_what_the_rank_test_counts(pairs):
    first, second = zip(*pairs, strict=True)
    found = compare_arms("a", "b", dict(enumerate(first)), dict(enumerate(second)))
    assert found is not None
    wins = mannwhitneyu(first, second).statistic
    assert found.dominance == pytest.approx(2 * wins / (len(first) * len(second)) - 1)
    assert found.ahead == sum(a > b for a, b in pairs)
    assert found.tied == sum(a == b for a, b in pairs)
    assert found.difference.mean == pytest.approx(np.mean(first) - np.mean(second), abs=1e-12)


def test_arms_are_compared_over_the_seeds_that_both_have():
    first, second = {0: 0.9, 1: 0.8, 2: 0.7, 7: 0.1}, {0: 0.5, 1: 0.6, 2: 0.4, 9: 1.0}
    found = compare_arms("a", "b", first, second)
    assert found is not None
    assert found.difference.seeds == 3
    assert found.difference.mean == pytest.approx((0.4 + 0.2 + 0.3) / 3)
    assert found.p == smallest_p(3) == 0.25
    assert compare_arms("a", "b", {0: 0.9, 1: 0.8}, {1: 0.1, 2: 0.4}) is None


def compared(p: float) -> Comparison:
    return Comparison("a", "b", mean_interval([0.1, 0.2]), 2, 0, 1.0, p, p, 0.5)


def test_the_smallest_p_is_what_the_test_gives_when_every_seed_says_the_same():
    for seeds in (2, 3, 7, 20, 30):  # of 30 seeds' flips those that are drawn do not hit it by chance
        found = compare_arms("a", "b", dict.fromkeys(range(seeds), 0.9), dict.fromkeys(range(seeds), 0.1))
        assert found is not None
        assert found.p == pytest.approx(smallest_p(seeds))
        assert found.smallest_corrected == smallest_p(seeds)


@pytest.mark.parametrize(("comparisons", "seeds"), [(1, 6), (5, 8), (22, 10), (25, 10), (26, 11), (253, 14)])
def test_so_many_seeds_and_no_fewer_can_settle_so_many_comparisons(comparisons, seeds):
    assert seeds_to_settle(comparisons) == seeds
    for shared, is_enough in ((seeds, True), (seeds - 1, False)):
        one = compare_arms("a", "b", dict.fromkeys(range(shared), 0.9), dict.fromkeys(range(shared), 0.1))
        assert one is not None
        assert (holm([one] * comparisons)[0].p_corrected < SETTLED_AT) == is_enough


def test_what_a_corrected_p_can_be_at_best_depends_on_the_seeds_of_all():
    made = [
        compare_arms("a", "b", dict.fromkeys(range(seeds), 0.9), dict.fromkeys(range(seeds), 0.1))
        for seeds in (10, 3, 10)
    ]
    found = holm([one for one in made if one is not None])
    # The two with ten seeds come first: 3 * 2 / 1024, and the second no less; then the one with three, times one.
    assert [one.smallest_corrected for one in found] == pytest.approx([0.005859375, 0.25, 0.005859375])
    assert [one.p_corrected for one in found] == pytest.approx([one.smallest_corrected for one in found])
    assert {one.together for one in found} == {3}


@given(st.lists(st.integers(0, 64).map(lambda n: n / 64), max_size=6))
def test_holms_correction_is_the_closed_test_of_bonferroni(ps):
    corrected = [one.p_corrected for one in holm([compared(p) for p in ps])]
    everyone = range(len(ps))
    subsets = list(chain.from_iterable(combinations(everyone, size) for size in range(1, len(ps) + 1)))
    for i in everyone:
        worst = max(min(1.0, len(subset) * min(ps[j] for j in subset)) for subset in subsets if i in subset)
        assert corrected[i] == pytest.approx(worst)
