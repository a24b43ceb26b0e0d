"""The fused rotation computes what the plain one computes in float64, forward and back."""

import pytest
import torch
from test_kernels import check
from torch.func import vmap

from latebloom.layers.ssm import rotate as module
from latebloom.layers.ssm.rotate import rotate

pytest.importorskip("triton")


@pytest.mark.parametrize(("key_heads", "size", "rotated"), [(3, 16, 8), (3, 7, 2), (1, 8, 4)])
def test_the_fused_rotation(device, monkeypatch, key_heads, size, rotated):
    monkeypatch.setattr(module, "uses_fused_kernel", lambda x: x.dtype == torch.float32)
    x = torch.randn(2, 2, key_heads, 5, size, device=device)
    angle = 2 * torch.pi * torch.rand(2, 2, 3, 5, rotated, device=device)

    def call(x, angle):
        return (vmap(rotate)(x, angle),)

    check(call, call, [x, angle])
    for i in range(2):
        assert torch.equal(rotate(x[i], angle[i]), call(x, angle)[0][i])
