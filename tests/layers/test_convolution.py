"""The fused short convolution computes what the sum over shifts computes in float64, forward and back."""

import pytest
import torch
from test_kernels import check, rows_of_parameters
from torch.func import vmap

from latebloom.layers import convolution as module
from latebloom.layers.convolution import _by_shifts, short_convolution

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """Use the fused kernel for float32 on every device."""
    monkeypatch.setattr(module, "uses_fused_kernel", lambda x, size: x.dtype == torch.float32)


# More channels than a program has, more sequences than a program of the backward kernel takes, and fewer tokens than a
# convolution sees.
@pytest.mark.parametrize(
    ("models", "batch", "tokens", "channels", "size"), [(2, 5, 6, 16, 4), (1, 2, 3, 130, 2), (2, 1, 1, 24, 4)]
)
@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_the_fused_short_convolution(device, models, batch, tokens, channels, size, starts, biased):
    x = torch.randn(models, batch, tokens, channels + 3, device=device)[..., 3:]  # a part of wider rows
    weight, bias = rows_of_parameters(device, models, (size, channels), (channels,))
    before = torch.randn(models, batch, size - 1, channels, device=device)
    inputs = [x, weight, *([bias] if biased else []), *([] if starts else [before])]
    kept = 1 if starts and tokens < size else 2  # where some of the last inputs are zeros, the sum has no gradient

    def stack_of(operation):
        def call(x, weight, *rest):
            rest = list(rest)
            bias = rest.pop(0) if biased else None
            before = None if starts else rest.pop(0)
            axes = (0, None if before is None else 0, 0, None if bias is None else 0)
            return vmap(operation, in_dims=axes)(x, before, weight, bias)[:kept]

        return call

    check(stack_of(short_convolution), stack_of(_by_shifts), inputs)


def test_stacked_models_compute_bit_for_bit_what_each_computes_alone(device):
    x, before = torch.randn(2, 5, 4, 16, device=device), torch.randn(2, 5, 3, 16, device=device)
    (weight,) = rows_of_parameters(device, 2, (4, 16))
    inputs = [one.clone().requires_grad_() for one in (x, before, weight)]
    slope = torch.randn_like(x)

    def call(x, before, weight):
        return short_convolution(x, before, weight, None)[0]

    found = vmap(call)(*inputs)
    grads = torch.autograd.grad(found, inputs, slope)
    for i in range(2):
        alone = [one[i].detach().requires_grad_() for one in inputs]
        expected = call(*alone)
        assert torch.equal(found[i], expected)
        assert all(
            torch.equal(grad[i], other)
            for grad, other in zip(grads, torch.autograd.grad(expected, alone, slope[i]), strict=True)
        )
