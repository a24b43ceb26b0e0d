"""How exact matrix products of float32 are on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["tf32", "float32"]


def product_precision() -> str:
    """What products in our kernels use, in Triton's words: like torch's own, `tf32` only where that is allowed.

    `tf32x3` takes three products of the matrix units for one and is as exact as float32's own arithmetic (a test
    compares both with float64), at a third of the cost.
    """
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Products of float32 on a GPU inside: `float32` as they are, `tf32` with factors rounded to 10 bits."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
