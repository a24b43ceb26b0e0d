"""The counter-based random numbers: pure, uniform, the same on host and device, alone and together."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from latebloom.tasks.random import bounded_int, distinct, distinct_pairs, fold, integers, words

words64 = st.integers(min_value=0, max_value=2**63 - 1)


def unsigned(value: int) -> int:
    return value % 2**64


@given(words64, st.integers(0, 2), words64)
def test_a_key_is_the_same_on_the_host_and_in_a_tensor(seed, split, index):
    on_host = fold(seed, split, index)
    in_tensor = fold(torch.tensor(seed), split, index)
    late_tensor = fold(seed, split, torch.tensor(index))
    assert isinstance(on_host, int)
    assert unsigned(int(in_tensor)) == on_host
    assert unsigned(int(late_tensor)) == on_host


def test_the_hash_is_splitmix64():
    """The first outputs of the published generator for seed 1234567: a check that nothing was mistyped."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state, gamma = 1234567, 0x9E3779B97F4A7C15
    from latebloom.tasks.random import _mix_int, _mix_tensor, _signed

    for step, output in enumerate(expected, start=1):
        assert _mix_int(state + step * gamma) == output
        assert unsigned(int(_mix_tensor(torch.tensor(_signed(state + step * gamma))))) == output


def test_a_row_does_not_depend_on_the_rows_beside_it():
    whole = words(5, torch.arange(10), 0, 7)
    pieces = torch.cat([words(5, torch.arange(3), 0, 7), words(5, torch.arange(3, 10), 0, 7)])
    assert torch.equal(whole, pieces)


def test_numbers_are_uniform():
    seen = integers(fold(3, 0, 0), torch.arange(2000), 0, 50, 10).flatten()
    assert chisquare(seen.bincount(minlength=10)).pvalue > 1e-3
    lengths = torch.tensor([bounded_int(fold(i), 24) for i in range(20_000)])  # type: ignore[arg-type]
    assert chisquare(lengths.bincount(minlength=24)).pvalue > 1e-3


def test_neighbours_are_not_correlated():
    """Neighbouring rows, columns, seeds, indices and streams give unrelated numbers."""
    base = integers(fold(1, 0, 1), torch.arange(500), 0, 40, 1000).double()
    others = {
        "seed": integers(fold(2, 0, 1), torch.arange(500), 0, 40, 1000),
        "split": integers(fold(1, 1, 1), torch.arange(500), 0, 40, 1000),
        "index": integers(fold(1, 0, 2), torch.arange(500), 0, 40, 1000),
        "stream": integers(fold(1, 0, 1), torch.arange(500), 1, 40, 1000),
        "row": integers(fold(1, 0, 1), torch.arange(1, 501), 0, 40, 1000),
        "column": base.roll(1, dims=1),
    }
    for name, other in others.items():
        both = torch.stack([base.flatten(), other.double().flatten()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.03, name


@given(st.integers(1, 40), st.integers(0, 40), words64)
def test_distinct_numbers_are_distinct(count, spare, seed):
    drawn = distinct(fold(seed), torch.arange(4), 1, count, count + spare)
    for row in drawn.tolist():
        assert len(set(row)) == count
        assert all(0 <= number < count + spare for number in row)


def test_every_number_is_equally_likely_at_every_place_of_a_shuffle():
    drawn = distinct(fold(9), torch.arange(6000), 1, 5, 8)
    for place in range(5):
        assert chisquare(drawn[:, place].bincount(minlength=8)).pvalue > 1e-3


@given(st.integers(2, 12), st.data(), words64)
def test_distinct_pairs_are_distinct(side, data, seed):
    count = data.draw(st.integers(1, side * side))
    drawn = distinct_pairs(fold(seed), torch.arange(4), 1, count, side)
    assert drawn.shape == (4, count, 2)
    for row in drawn.tolist():
        assert len(set(map(tuple, row))) == count
        assert all(0 <= number < side for pair in row for number in pair)


def test_every_pair_is_equally_likely_at_every_place_and_beside_every_other():
    side, rows = 4, 16_000
    drawn = distinct_pairs(fold(9), torch.arange(rows), 1, 6, side)
    numbers = drawn[:, :, 0] * side + drawn[:, :, 1]
    for place in range(6):
        assert chisquare(numbers[:, place].bincount(minlength=side * side)).pvalue > 1e-3
    for one, other in ((0, 1), (0, 5), (2, 3)):  # two different pairs differ by 1 to 15, each equally likely
        apart = (numbers[:, other] - numbers[:, one]) % side**2
        assert chisquare(apart.bincount(minlength=side**2)[1:]).pvalue > 1e-3


def test_bounds_may_differ_from_number_to_number():
    bounds = torch.arange(1, 9).expand(2000, -1)
    drawn = integers(fold(4), torch.arange(2000), 0, 8, bounds)
    assert bool((drawn < bounds).all())
    assert chisquare(drawn[:, 6].bincount(minlength=7)).pvalue > 1e-3
