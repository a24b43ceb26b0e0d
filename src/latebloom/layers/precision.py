"""The precision of float32 matrix products on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["tf32", "float32", "bf16"]

_uses_bf16 = False


def product_precision() -> str:
    """Return the precision of products in this package's kernels: `bf16` if it is set, `tf32` if torch allows it.

    Otherwise `tf32x3`, which computes a product as three on the tensor cores. It is as exact as float32 arithmetic (a
    test compares both with float64) at a third of the cost.
    """
    if _uses_bf16:
        return "bf16"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def is_float32_on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is in float32 on a GPU, outside of autocast, which mixes types."""
    return x.is_cuda and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")


def takes_bf16(x: object) -> bool:
    """Return whether products of `x` are computed in bf16; on a CPU they never are."""
    return _uses_bf16 and isinstance(x, Tensor) and x.is_cuda and x.is_floating_point()


def exact_bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return a batched product in float32, whatever the dtype of its factors."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a.float(), b.float())


@contextmanager
def precision(name: Precision) -> Iterator[None]:
    """Set the precision of float32 products on a GPU within the context.

    `tf32` rounds factors to 10 bits, `bf16` to 7 bits in this package's kernels (10 in torch's own) and stores the
    gates of LSTM, GRU and sLSTM in 16 bits.
    """
    global _uses_bf16
    before = _uses_bf16, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    _uses_bf16 = name == "bf16"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name != "float32"
    try:
        yield
    finally:
        _uses_bf16, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
