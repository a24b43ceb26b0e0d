"""The fused M²RNN computes what its loop computes in float64, forward and back, within float32's rounding."""

from typing import Any

import pytest
import torch
from test_kernels import IN_BF16, check, rows_of_parameters
from torch import Tensor

from latebloom.layers.m2rnn import operation as m2rnn_module
from latebloom.layers.m2rnn.operation import fused_m2rnn, m2rnn_loop
from latebloom.layers.precision import precision

pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("models", "batch", "tokens", "heads", "key_size", "value_size", "noisy"),
    [(2, 5, 4, 2, 3, 8, True), (1, 33, 2, 1, 16, 16, False), (2, 3, 3, 1, 5, 24, True), (1, 2, 1, 2, 16, 16, True)],
)
def test_the_fused_m2rnn(device, models, batch, tokens, heads, key_size, value_size, noisy):
    inputs, noise = m2rnn_inputs(device, models, batch, tokens, heads, key_size, value_size)
    noise = noise if noisy else None

    def fused(*inputs):
        return fused_m2rnn(*inputs, noise)

    def plain(*inputs):
        return m2rnn_loops(*inputs, None if noise is None else noise.double())

    check(fused, plain, inputs)
    state = inputs[-1]  # in training the first state has no gradient, and nobody asks for the last
    check(lambda *rest: fused(*rest, state)[:1], lambda *rest: plain(*rest, state.double())[:1], inputs[:-1])
    # The result repeats bit for bit: without a gradient, and with slices of a projection or copies of them.
    with torch.no_grad():
        found: list[tuple[Tensor, ...]] = [fused(*inputs)]
    for given in (inputs, inputs, [part.clone() for part in inputs]):
        tracked = fused(*(part.requires_grad_() for part in given))
        found.append((*tracked, *torch.autograd.grad(tracked[0].square().sum(), given)))
    for result in found[:-1]:
        assert all(torch.equal(a, b) for a, b in zip(result, found[-1], strict=False))


def m2rnn_inputs(device, models, batch, tokens, heads, key_size, value_size):
    """Random inputs as in the layer, where queries, keys and values are slices of one projection; and noise."""
    sizes = [heads * key_size, heads * key_size, heads * value_size]
    together = torch.randn(models, batch, tokens, sum(sizes) + 3, device=device)[..., 3:]
    query, key, value = (part.unflatten(-1, (heads, -1)) for part in together.split(sizes, dim=-1))
    forget = torch.rand(models, batch, tokens, heads, device=device)
    (weight,) = rows_of_parameters(device, models, (heads, value_size, value_size))
    state = torch.randn(models, batch, heads, key_size, value_size, device=device)
    return [query, key, value, forget, weight, state], 0.3 * torch.randn(value.shape, device=device)


def m2rnn_loops(*inputs):
    """Return outputs and last states (S, ...) of each of S models by the reference loop."""
    models: Any = ([None if part is None else part[i] for part in inputs] for i in range(len(inputs[0])))
    return tuple(torch.stack(part) for part in zip(*(m2rnn_loop(*model) for model in models), strict=True))


def test_a_stacked_m2rnn_computes_bit_for_bit_what_it_computes_alone(device, monkeypatch):
    monkeypatch.setattr(m2rnn_module, "uses_fused_kernel", lambda query, value_size: True)
    inputs, noise = m2rnn_inputs(device, 3, 5, 2, 2, 4, 8)
    given = [part.requires_grad_() for part in inputs]

    def outcome(outputs, last):
        grads = torch.autograd.grad(outputs.square().sum() + last.square().sum(), given)
        return [outputs, last, *grads]

    stack: Any = (*given, noise)
    together = outcome(*torch.func.vmap(m2rnn_module.m2rnn)(*stack))
    alone = [m2rnn_module.m2rnn(*(part[i] for part in stack)) for i in range(3)]
    for one, other in zip(together, outcome(*map(torch.stack, zip(*alone, strict=True))), strict=True):
        assert torch.equal(one, other)


def test_the_m2rnn_keeps_states_for_a_gradient_only(device, monkeypatch):
    from latebloom.layers.m2rnn import m2rnn_triton

    kept, forward = [], m2rnn_triton.forward

    def noted(*arguments):
        kept.append(forward(*arguments)[-1].numel())
        return forward(*arguments)

    monkeypatch.setattr(m2rnn_triton, "forward", noted)
    monkeypatch.setattr(m2rnn_module, "uses_fused_kernel", lambda query, value_size: True)
    inputs, _ = m2rnn_inputs(device, 2, 1, 3, 2, 4, 8)
    weights = inputs[4].requires_grad_()  # as in evaluation, where parameters have gradients in principle
    stack = (*inputs[:4], weights, inputs[5])
    cases: Any = ((m2rnn_module.m2rnn, [part[0] for part in stack]), (torch.func.vmap(m2rnn_module.m2rnn), stack))
    for function, given in cases:
        function(*given)
        with torch.no_grad():
            function(*given)
    assert kept == [3 * 2 * 4 * 8, 0, 2 * 3 * 2 * 4 * 8, 0]


def test_the_fused_m2rnn_in_bf16(device):
    inputs, noise = m2rnn_inputs(device, 2, 5, 4, 2, 4, 16)
    with precision("bf16"):
        check(
            lambda *inputs: fused_m2rnn(*inputs, noise),
            lambda *inputs: m2rnn_loops(*inputs, noise.double()),
            inputs,
            **IN_BF16,
        )
