"""The processes that other tests start: a failure is told with its cause, and none waits without end."""

import os
import time

import pytest
import torch.distributed as dist
from ranks import run_ranks


def sum_of_ranks(more: int) -> dict[str, int]:
    dist.init_process_group("gloo")
    numbers: list[int] = [0, 0]
    dist.all_gather_object(numbers, dist.get_rank() + more)
    return {"sum": sum(numbers), "process": os.getpid()}


def fail_on_one() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("the second rank has had enough")
    dist.barrier()


def sleep_on() -> None:
    time.sleep(600)


def test_each_rank_is_a_process_of_its_own_and_hands_back_what_it_has():
    first, second = run_ranks(sum_of_ranks, 5)
    assert first["sum"] == second["sum"] == 11
    assert len({first["process"], second["process"], os.getpid()}) == 3


def test_a_rank_that_fails_ends_both_with_its_words():
    with pytest.raises(AssertionError, match="ValueError: the second rank has had enough"):
        run_ranks(fail_on_one)


def test_ranks_that_do_not_end_are_stopped_and_say_where_they_stood():
    with pytest.raises(AssertionError, match=r"(?s)0\.stacks:.* in sleep_on.*1\.stacks:.* in sleep_on"):
        run_ranks(sleep_on, limit=1)
