"""The counter's kernels give the plain form's numbers, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebloom.kernels.counter import fused_distinct, fused_words
from latebloom.tasks import counter

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@settings(max_examples=15, deadline=None)
@given(
    key=st.integers(-(2**63), 2**63 - 1),
    first=st.integers(0, 2**40),
    stream=st.integers(0, 8),
    bound=st.integers(2, 300),
    data=st.data(),
)
def test_words_and_distinct_numbers_are_the_same(key, first, stream, bound, data):
    count = data.draw(st.integers(1, min(bound, 20)))
    rows = torch.arange(first, first + 3)
    offset = counter._signed(counter._mix_int(stream + 1))
    on_device = torch.tensor(key, device=DEVICE), rows.to(DEVICE)
    assert torch.equal(fused_words(*on_device, offset, bound).cpu(), counter.words(key, rows, stream, bound))
    assert torch.equal(
        fused_distinct(*on_device, offset, count, bound).cpu(), counter.distinct(key, rows, stream, count, bound)
    )
