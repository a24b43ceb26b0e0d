"""Matrix products inside kernels, in the precision that was asked for."""

# A kernel is compiled, not run as Python: branches on its constants are resolved.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false

import triton
import triton.language as tl


@triton.jit
def factor(x, PRECISION: tl.constexpr):
    """What stands in products, rounded as they take it; for many of them, once."""
    if PRECISION == "bf16":
        x = x.to(tl.bfloat16).to(tl.float32)
    return x


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """a (M, K) times b (K, N) on top of a total (M, N), added up in float32."""
    # Numbers of bf16 are numbers of tf32, so the matrix units multiply them as that without rounding them again.
    units: tl.constexpr = "tf32" if PRECISION == "bf16" else PRECISION
    return tl.dot(factor(a, PRECISION), factor(b, PRECISION), total, input_precision=units)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a (M, K) times b (K, N), added up in float32."""
    return add_product(tl.zeros([a.shape[0], b.shape[1]], tl.float32), a, b, PRECISION)
