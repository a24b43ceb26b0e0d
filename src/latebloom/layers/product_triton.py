"""Matrix products inside kernels, in the chosen precision."""

# A kernel is compiled, not run as Python: branches on its constants are resolved.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false

import triton
import triton.language as tl


@triton.jit
def factor(x, PRECISION: tl.constexpr):
    """Round a factor once that is used in several products."""
    if PRECISION == "bf16":
        x = x.to(tl.bfloat16).to(tl.float32)
    return x


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """Return total (M, N) + a (M, K) @ b (K, N), accumulated in float32."""
    # Every bf16 number is a tf32 number, so the tensor cores multiply them as tf32 without rounding again.
    units: tl.constexpr = "tf32" if PRECISION == "bf16" else PRECISION
    return tl.dot(factor(a, PRECISION), factor(b, PRECISION), total, input_precision=units)


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """Return a (M, K) @ b (K, N), accumulated in float32."""
    return add_product(tl.zeros([a.shape[0], b.shape[1]], tl.float32), a, b, PRECISION)
