"""The kernels of the random numbers give the plain form's numbers, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebloom.tasks import random
from latebloom.tasks.random import fused_distinct, fused_words

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
    offset = random._signed(random._mix_int(stream + 1))
    on_device = torch.tensor(key, device=DEVICE), rows.to(DEVICE)
    assert torch.equal(fused_words(*on_device, offset, bound).cpu(), random.words(key, rows, stream, bound))
    assert torch.equal(
        fused_distinct(*on_device, offset, count, bound).cpu(), random.distinct(key, rows, stream, count, bound)
    )
