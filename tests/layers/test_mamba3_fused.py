"""The fused kernels around the recurrence of Mamba-3 compute what the plain form does in float64, forward and back."""

import pytest
import torch
from test_kernels import check, rows_of_parameters
from torch.func import functional_call, vmap

from latebloom.layers.ssm import mamba3 as module
from latebloom.layers.ssm.mamba3 import Mamba3, State
from latebloom.layers.ssm.mamba3_fused import mamba3_inputs, mamba3_outputs
from latebloom.layers.ssm.operation import ssm_loop

pytest.importorskip("triton")

MODELS, BATCH = 2, 2


# Without a state before it, a single token has no use for its decay. 20 tokens are more than a tile has.
@pytest.mark.parametrize(
    ("tokens", "heads", "head_size", "size", "rotated", "starts", "noisy"),
    [
        (1, 4, 4, 16, 1.0, False, True),
        (5, 3, 7, 7, 0.6, True, False),
        (9, 1, 16, 8, 0.5, False, False),
        (20, 4, 4, 16, 1.0, True, True),
        (20, 3, 5, 16, 0.5, False, True),
    ],
)
def test_the_fused_layer(device, monkeypatch, tokens, heads, head_size, size, rotated, starts, noisy):
    monkeypatch.setattr(module, "uses_fused_kernels", lambda x, channels: x.dtype == torch.float32)
    monkeypatch.setattr(module, "ssm", ssm_loop)  # it takes no logarithms of decays, so that it rounds less
    width = heads * head_size
    layer = Mamba3(heads=heads, key_size=size, rotated=rotated).build(width).to(device)
    names = [name for name, _ in layer.named_parameters()]
    parameters = [part + 0.3 * torch.randn(MODELS, *part.shape, device=device) for part in layer.parameters()]
    x = torch.randn(MODELS, BATCH, tokens, width, device=device)
    noise = torch.randn_like(x) if noisy else None
    pairs = layer.settings.pairs
    shapes = [] if starts else [(heads, pairs), (heads, size, head_size), (heads, size), (heads, head_size)]
    state = [torch.randn(MODELS, BATCH, *shape, device=device) for shape in shapes]
    inputs = [x.detach(), *(part.detach() for part in parameters), *state]

    def one(x, noise, *rest):
        given = dict(zip(names, rest, strict=False))
        before = None if starts else State(*rest[len(names) :])
        y, (angle, *last) = functional_call(layer, given, (x, before, noise))
        return y, angle.cos(), angle.sin(), *last  # angles just above 0 and just below 2 pi are the same

    def call(x, *rest):
        if noise is None:
            return vmap(lambda x, *rest: one(x, None, *rest))(x, *rest)
        return vmap(one)(x, noise.to(x.dtype), *rest)

    # The gradients of step and rate cancel over the tokens: the plain form in float32 is as far off.
    check(call, call, inputs, most=2e-6 if tokens < 10 else 6e-6)
    outputs = call(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(call(*inputs), outputs, strict=True))


@pytest.mark.parametrize("starts", [True, False])
def test_stacked_models_are_computed_as_alone(device, starts):
    heads, size, tokens, width = 3, 6, 20, 12
    sizes = [width, width, size, size, heads, heads, heads, 2]
    projected = torch.randn(MODELS, BATCH, tokens, sum(sizes), device=device)
    parameters = rows_of_parameters(device, MODELS, (2, size), (2, heads, size), (heads,), (heads,), (heads,))
    *parameters, skip = parameters
    angle, noise = torch.rand(MODELS, BATCH, heads, 2, device=device), torch.randn(MODELS, BATCH, tokens, width)
    inputs = [projected, *parameters, *([] if starts else [angle]), noise.to(device)]

    def one(skip, *inputs):
        *inputs, noise = inputs
        arguments = [*inputs, *([None] if starts else []), noise, sizes, 1e-4]
        terms = mamba3_inputs(*arguments)
        return *terms, mamba3_outputs(terms.write, terms.values, terms.gate, terms.correction, skip)

    stacked = vmap(one)(skip, *inputs)
    for i in range(MODELS):
        alone = one(skip[i], *(part[i] for part in inputs))
        assert all(torch.equal(a, b[i]) for a, b in zip(alone, stacked, strict=True))


@pytest.mark.parametrize("part", ["outputs", "memory"])
def test_gradients_of_a_part_of_the_results(device, monkeypatch, part):
    """In training nobody asks for the state after the last token, so that its gradients are missing."""
    monkeypatch.setattr(module, "ssm", ssm_loop)
    layer = Mamba3(heads=2, key_size=8).build(8).to(device)
    x = torch.randn(BATCH, 9, 8, device=device, requires_grad=True)
    grads = []
    for fused in (False, True):
        monkeypatch.setattr(module, "uses_fused_kernels", lambda x, channels, fused=fused: fused)
        y, state = layer(x)
        result = y if part == "outputs" else state.memory
        inputs = [x, layer.inputs.weight, layer.norms, layer.biases, layer.step, layer.rate]
        grads.append(torch.autograd.grad(result.square().sum(), inputs, materialize_grads=True))
    for plain, fused in zip(*grads, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
