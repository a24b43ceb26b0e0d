"""The order in which the programs of a kernel take their parts of the data."""

# A kernel is compiled, not run as Python.
# pyright: reportArgumentType=false, reportCallIssue=false

import triton
import triton.language as tl


@triton.jit
def from_the_end(AXIS: tl.constexpr):
    """Return the number of this program, counted from the last one.

    Programs start in order. What the kernel before wrote last is still in the cache, so a kernel that begins there
    reads a part of its inputs without going to memory. It ends at the beginning, which is where the next one begins. So
    every other kernel counts from the end: norms and attention do, and what stands between them does not.
    """
    return tl.num_programs(AXIS) - 1 - tl.program_id(AXIS)
