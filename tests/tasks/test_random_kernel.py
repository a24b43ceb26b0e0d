"""The kernels of the random numbers give the plain form's numbers, bit for bit."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from latebloom.tasks import Composite, random
from latebloom.tasks.random import fold, fused_distinct, fused_fold, fused_integers, fused_words, stream_offset

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
words64 = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=15, deadline=None)
@given(
    key=words64,
    first=st.integers(0, 2**40),
    stream=st.integers(0, 8),
    bound=st.integers(2, 300),
    data=st.data(),
)
def test_words_and_numbers_are_the_same(key, first, stream, bound, data):
    count = data.draw(st.integers(1, min(bound, 20)))
    rows, offset = torch.arange(first, first + 3), stream_offset(stream)
    on_device = torch.tensor(key, device=DEVICE), rows.to(DEVICE)
    assert torch.equal(fused_words(*on_device, offset, bound).cpu(), random.words(key, rows, stream, bound))
    assert torch.equal(
        fused_integers(*on_device, offset, count, bound).cpu(), random.integers(key, rows, stream, count, bound)
    )
    assert torch.equal(
        fused_distinct(*on_device, offset, count, bound).cpu(), random.distinct(key, rows, stream, count, bound)
    )


@settings(max_examples=15, deadline=None)
@given(key=words64, seeds=st.lists(words64, min_size=2, max_size=3), index=words64, number=words64)
def test_keys_are_the_same(key, seeds, index, number):
    first, second = torch.tensor(seeds, device=DEVICE), torch.tensor(index, device=DEVICE)
    expected = [random._signed(int(fold(key, seed, 1, index, number))) for seed in seeds]
    before = random._signed(int(fold(key)))

    def folded(seed):
        return fused_fold(seed, before, 1, second, number)

    assert vmap(folded)(first).tolist() == expected
    assert [int(folded(seed)) for seed in first] == expected


@pytest.mark.parametrize("length", [2, 3, 16, 33])
@pytest.mark.parametrize("order", ["digits-first", "pairs-first"])
@pytest.mark.parametrize("supervision", ["aligned", "outcome"])
def test_composite_sequences_are_the_same(length, order, supervision):
    task = Composite(modulus=7, keys=20, values=1000, order=order, supervision=supervision)
    keys, rows = torch.tensor([3, -(2**62)]), torch.arange(5, 9)
    forms = []

    def drawn(key):
        batch = task.draw_fused(key, rows.to(DEVICE), length)
        forms.append(replace(batch, tokens=rows, positions=rows, targets=rows))
        return batch.tokens, batch.positions, batch.targets

    expected = [task.draw(int(key), rows, length) for key in keys]
    stacked = [part.cpu() for part in vmap(drawn)(keys.to(DEVICE))]
    for number, batch in enumerate(expected):
        alone = [part.cpu() for part in drawn(keys[number].to(DEVICE))]
        parts = batch.tokens, batch.positions, batch.targets
        for one, among, part in zip(alone, stacked, parts, strict=True):
            assert torch.equal(one, part)
            assert torch.equal(among[number], part)
        assert forms[-1] == replace(batch, tokens=rows, positions=rows, targets=rows)
