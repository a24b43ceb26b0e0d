"""Which tensors the fused kernels take."""

from types import SimpleNamespace
from typing import Any

import torch

from latebloom.layers.precision import is_float32_on_gpu


def test_float32_on_a_gpu_does_not_count_under_autocast():
    tensor: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert is_float32_on_gpu(tensor)
    torch.set_autocast_enabled("cuda", True)
    try:
        assert not is_float32_on_gpu(tensor)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert not is_float32_on_gpu(torch.ones(2))
    half: Any = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16)
    assert not is_float32_on_gpu(half)
