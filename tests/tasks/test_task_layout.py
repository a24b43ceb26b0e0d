"""Orders, last writes and permutations on tensors, compared with loops."""

from itertools import permutations

import torch
from hypothesis import given
from hypothesis import strategies as st

from latebloom.tasks.layout import last_write, pick_write, random_kinds, writes_and_reads
from latebloom.tasks.permutations import cycle, rank, running_product, unrank, unrank_even
from latebloom.tasks.random import fold, integers

seeds = st.integers(0, 2**63 - 1)
ROWS = torch.arange(4)


@given(st.integers(1, 30), st.integers(1, 5), seeds)
def test_the_last_write_is_what_a_dictionary_holds(length, slot_count, seed):
    slots = integers(fold(seed), ROWS, 0, length, slot_count)
    writes = integers(fold(seed), ROWS, 1, length, 2) == 1
    found = last_write(writes, slots)
    for row in range(len(ROWS)):
        memory: dict[int, int] = {}
        for item in range(length):
            slot = int(slots[row, item])
            if writes[row, item]:
                memory[slot] = item
            if slot in memory:
                assert int(found[row, item]) == memory[slot]


@given(st.integers(1, 30), seeds)
def test_a_picked_write_is_a_write_before_the_item(length, seed):
    writes = integers(fold(seed), ROWS, 1, length, 2) == 1
    picked = pick_write(fold(seed), ROWS, 2, writes)
    for row in range(len(ROWS)):
        for item in range(length):
            if bool(writes[row, :item].any()):
                assert int(picked[row, item]) < item
                assert bool(writes[row, picked[row, item]])


def test_every_write_before_an_item_is_picked_equally_often():
    writes = torch.tensor([[True, False, True, True, False, False]]).expand(6000, -1)
    picked = pick_write(fold(3), torch.arange(6000), 0, writes)[:, -1]
    assert picked.unique().tolist() == [0, 2, 3]
    assert int(picked.bincount().max()) < 2150


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(sum), seeds)
def test_kinds_have_their_counts(counts, seed):
    kinds = random_kinds(fold(seed), ROWS, 0, counts)
    for row in kinds:
        assert row.bincount(minlength=len(counts)).tolist() == counts


def test_every_order_of_writes_and_reads_after_a_first_write_is_equally_likely():
    kinds = writes_and_reads(fold(5), torch.arange(6000), 0, 3, 2)
    orders = [tuple(row) for row in kinds.tolist()]
    assert len(set(orders)) == 6
    assert all(order[0] == 0 and sum(order) == 2 for order in set(orders))
    assert max(map(orders.count, set(orders))) < 1150


def test_permutations_are_numbered_in_lexicographic_order():
    for n in (2, 3, 4, 5):
        every = list(permutations(range(n)))
        found = unrank(torch.arange(len(every)), n)
        assert [tuple(row) for row in found.tolist()] == every
        assert rank(found).tolist() == list(range(len(every)))
        if n > 2:
            signs = [round(float(torch.linalg.det(torch.eye(n)[list(p)]))) for p in every]
            even = [p for p, sign in zip(every, signs, strict=True) if sign == 1]
            assert [tuple(row) for row in unrank_even(torch.arange(len(even)), n).tolist()] == even


@given(st.integers(1, 40), st.integers(2, 5), seeds)
def test_running_products_are_what_a_loop_finds(length, n, seed):
    steps = unrank(integers(fold(seed), ROWS, 0, length, 2 if n == 2 else 6 if n == 3 else 24), n)
    products = running_product(steps)
    for row in range(len(ROWS)):
        state = list(range(n))
        for at in range(length):
            state = [state[image] for image in steps[row, at].tolist()]
            assert products[row, at].tolist() == state


def test_a_cycle_moves_its_points_and_no_others():
    assert cycle(torch.tensor([[3, 1], [0, 4]]), 5).tolist() == [[0, 3, 2, 1, 4], [4, 1, 2, 3, 0]]
    assert cycle(torch.tensor([3, 1, 0]), 5).tolist() == [3, 0, 2, 1, 4]
