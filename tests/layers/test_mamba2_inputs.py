"""The fused inputs of Mamba-2 are what the plain ones are in float64, forward and back."""

import pytest
import torch
from test_kernels import check, rows_of_parameters
from torch.func import vmap

from latebloom.layers.ssm import mamba2_inputs as module
from latebloom.layers.ssm.mamba2_inputs import mamba2_inputs

pytest.importorskip("triton")

MODELS, BATCH = 2, 3


# The third one has more rows than a program of the backward kernel takes.
@pytest.mark.parametrize(
    ("tokens", "heads", "head_size", "size"), [(1, 4, 16, 16), (5, 3, 7, 5), (90, 4, 16, 8), (3, 1, 24, 33)]
)
@pytest.mark.parametrize(("both_signs", "noisy"), [(False, False), (True, True)])
def test_the_fused_inputs(device, monkeypatch, tokens, heads, head_size, size, both_signs, noisy):
    monkeypatch.setattr(module, "uses_fused_kernel", lambda x: x.dtype == torch.float32)
    width = heads * head_size
    wide = torch.randn(MODELS, BATCH, tokens, width + 2 * size + heads + 3, device=device)[..., 3:]
    mixed, step = wide.split([width + 2 * size, heads], dim=-1)  # parts of wider rows
    inputs = [mixed, step, *rows_of_parameters(device, MODELS, (heads,), (heads,))]
    if noisy:
        inputs.append(torch.randn(MODELS, BATCH, tokens, width, device=device))

    def one(*inputs):
        arguments = [*inputs, *([] if noisy else [None]), size, both_signs]
        return tuple(mamba2_inputs(*arguments))

    def call(*inputs):
        return vmap(one)(*inputs)

    check(call, call, inputs)
    outputs = call(*inputs)
    for i in range(MODELS):
        alone = one(*(part[i] for part in inputs))
        assert all(torch.equal(a, b[i]) for a, b in zip(alone, outputs, strict=True))
