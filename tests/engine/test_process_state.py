"""What a run borrows from its process."""

import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from latebloom.engine.process_state import keep_freed_memory, preserve_torch_state


def page_faults_of_a_step() -> int:
    """Take 80 MB in parts, use them and free them, as a step does."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.ones(1_000_000) for _ in range(20)]
    assert sum(part.numel() for part in parts) == 20_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure() -> tuple[int, int, int]:
    """Page faults of the first step and of a later one while memory is kept, and the bytes that are given back."""
    with keep_freed_memory():
        first = page_faults_of_a_step()
        later = min(page_faults_of_a_step() for _ in range(5))
        kept = resident_bytes()
    return first, later, kept - resident_bytes()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is kept by telling glibc to")
def test_memory_is_kept_from_step_to_step_and_given_back_at_the_end():
    # A process of its own: what earlier tests left in this one's heap, and their threads, would be measured too.
    code = "from test_process_state import measure; print(*measure())"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    first, later, given_back = map(int, ran.stdout.split())
    pages = 80_000_000 // resource.getpagesize()
    assert first > pages / 2
    assert later < pages / 20
    assert given_back > 40_000_000


def test_what_torch_is_told_in_a_step_that_fails_is_not_left_behind():
    def fail():
        with preserve_torch_state(torch.device("cpu")):
            torch.set_deterministic_debug_mode("error")  # as on the way back through the library's attention
            raise torch.OutOfMemoryError

    try:
        with pytest.raises(torch.OutOfMemoryError):
            fail()
        assert torch.get_deterministic_debug_mode() == 0
    finally:
        torch.set_deterministic_debug_mode(0)
