"""How exact matrix products of float32 are on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["tf32", "float32", "bf16"]

_asked_bf16 = False


def product_precision() -> str:
    """What products in our kernels use: like torch's own, `tf32` only where that is allowed; `bf16` where it is asked.

    `tf32x3` takes three products of the matrix units for one and is as exact as float32's own arithmetic (a test
    compares both with float64), at a third of the cost.
    """
    if _asked_bf16:
        return "bf16"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def takes_bf16(x: object) -> bool:
    """Whether what is computed from numbers is computed in bf16: a CPU stays with float32."""
    return _asked_bf16 and isinstance(x, Tensor) and x.is_cuda and x.is_floating_point()


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Products of float32 on a GPU inside: `float32` as they are, `tf32` with factors rounded to 10 bits, `bf16` with
    factors rounded to 7 bits in our kernels (to 10 in torch's own), and the LSTM's gates kept in 16 bits."""
    global _asked_bf16
    before = _asked_bf16, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    _asked_bf16 = name == "bf16"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "float32"
    try:
        yield
    finally:
        _asked_bf16, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
