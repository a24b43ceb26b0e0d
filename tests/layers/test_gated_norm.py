"""The fused RMS norm with a gate computes what the plain one computes in float64, forward and back."""

import pytest
import torch
from test_kernels import check, rows_of_parameters
from torch.func import vmap

from latebloom.layers import gated_norm as module
from latebloom.layers.gated_norm import gate_then_normalize, normalize_then_gate

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """Use the fused kernel for float32 on every device."""
    monkeypatch.setattr(module, "uses_fused_kernel", lambda x: x.dtype == torch.float32)


# The last one has more rows than a program of the backward kernel takes.
@pytest.mark.parametrize(
    ("models", "batch", "tokens", "groups", "size"), [(2, 2, 3, 2, 8), (2, 3, 5, 1, 24), (2, 3, 50, 3, 129)]
)
@pytest.mark.parametrize("activation", ["silu", "sigmoid", "none"])
def test_the_norm_before_the_gate(device, models, batch, tokens, groups, size, activation):
    x = torch.randn(models, batch, tokens, groups, size, device=device)
    gate = torch.randn(models, batch, tokens, groups * size + 3, device=device)[..., 3:]  # a part of wider rows
    inputs = [x, *rows_of_parameters(device, models, (size,)), gate]

    def call(x, weight, gate):
        return (vmap(lambda x, weight, gate: normalize_then_gate(x, weight, gate, activation))(x, weight, gate),)

    if activation == "none":

        def call_without_gate(x, weight):
            return call(x, weight, gate)

        check(call_without_gate, call_without_gate, inputs[:2])
    else:
        check(call, call, inputs)


@pytest.mark.parametrize(("models", "batch", "tokens", "size"), [(2, 3, 5, 16), (1, 2, 3, 24)])
def test_the_gate_before_the_norm(device, models, batch, tokens, size):
    x, gate = torch.randn(2, models, batch, tokens, size, device=device)
    inputs = [x, *rows_of_parameters(device, models, (size,)), gate]

    def call(x, weight, gate):
        return (vmap(gate_then_normalize)(x, weight, gate),)

    check(call, call, inputs)
    for i in range(models):
        alone = gate_then_normalize(x[i], inputs[1][i], gate[i])
        assert torch.equal(call(x, inputs[1], gate)[0][i], alone)


def test_the_gate_before_the_norm_with_a_skip(device):
    x, gate = torch.randn(2, 2, 3, 5, 24, device=device)
    skipped = torch.randn(2, 3, 5, 31, device=device)[..., 3:27]  # a part of wider rows
    inputs = [x, *rows_of_parameters(device, 2, (24,)), gate, *rows_of_parameters(device, 2, (3,)), skipped]

    def call(*inputs):
        return (vmap(gate_then_normalize)(*inputs),)

    check(call, call, inputs)
    for i in range(2):
        assert torch.equal(gate_then_normalize(*(part[i] for part in inputs)), call(*inputs)[0][i])
