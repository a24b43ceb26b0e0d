"""Exact binomial intervals agree with scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from latebloom.evaluation import binomial_interval


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_intervals_are_those_of_clopper_and_pearson(counts, level):
    correct, total = counts
    expected = binomtest(correct, total).proportion_ci(confidence_level=level, method="exact")
    assert binomial_interval(correct, total, level) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_ends():
    assert binomial_interval(0, 10)[0] == 0.0
    assert binomial_interval(10, 10)[1] == 1.0
    with pytest.raises(ValueError, match="11 of 10"):
        binomial_interval(11, 10)
