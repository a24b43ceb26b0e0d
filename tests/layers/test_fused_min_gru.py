"""The fused minGRU computes what its equation says token by token in float64, forward and back."""

from typing import Any

import pytest
import torch
from test_kernels import check
from torch import Tensor

from latebloom.layers.min_gru import MinGRU
from latebloom.layers.min_gru import operation as module
from latebloom.layers.min_gru.operation import min_gru

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    monkeypatch.setattr(module, "is_float32_on_gpu", lambda x: x.dtype == torch.float32)


def inputs_of(device, *shape) -> list[Tensor]:
    """Random projected inputs, a state, and noise."""
    *leading, tokens, width = shape
    projected = 2 * torch.randn(*leading, tokens, 2 * width, device=device)
    return [projected, torch.randn(*leading, width, device=device), 0.3 * torch.randn(shape, device=device)]


def by_token(projected, state, noise, positive):
    """h = (1 - z) h + z g(c) + noise: the specification."""
    candidates, updates = projected.chunk(2, dim=-1)
    hidden, outputs = torch.zeros_like(candidates[..., 0, :]) if state is None else state, []
    for t in range(projected.shape[-2]):
        candidate, update = candidates[..., t, :], updates[..., t, :].sigmoid()
        if positive:
            candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
        hidden = (1 - update) * hidden + update * candidate
        if noise is not None:
            hidden = hidden + noise[..., t, :]
        outputs.append(hidden)
    return torch.stack(outputs, dim=-2)


def positive(*inputs: Any) -> Tensor:
    projected, state, noise = inputs
    return min_gru(projected, state, noise, True)


# Widths that are no power of two, and of several programs; fewer tokens than are loaded ahead, as many, and more.
@pytest.mark.parametrize(
    ("batch", "tokens", "width"), [(1, 1, 1), (5, 4, 3), (3, 9, 64), (2, 3, 24), (33, 5, 16), (2, 6, 150)]
)
@pytest.mark.parametrize(
    ("has_state", "noisy", "positive"),
    [(True, True, True), (False, False, True), (True, False, False), (False, True, False)],
)
def test_the_fused_min_gru(device, batch, tokens, width, has_state, noisy, positive):
    projected, state, noise = inputs_of(device, batch, tokens, width)
    inputs = [projected, *([state] if has_state else []), *([noise] if noisy else [])]

    def call(function):
        def called(projected, *rest):
            rest = list(rest)
            state, noise = (rest.pop(0) if given else None for given in (has_state, noisy))
            outputs = function(projected, state, noise, positive)
            return outputs, outputs[..., -1, :]

        return called

    check(call(min_gru), call(by_token), inputs)
    # The result repeats bit for bit: without a gradient, and where noise and state have none.
    with torch.no_grad():
        found: list[tuple[Tensor, ...]] = [call(min_gru)(*inputs)]
    for given in (inputs, inputs[:1]):
        rest = inputs[len(given) :]
        tracked = [part.clone().requires_grad_() for part in given]
        outputs = call(min_gru)(*tracked, *rest)
        found.append((*outputs, *torch.autograd.grad(outputs[0].square().sum(), tracked)))
    for result in found:
        assert all(torch.equal(a, b) for a, b in zip(result, found[1], strict=False))


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_stacked_min_gru_computes_bit_for_bit_what_it_computes_alone(device, has_state, noisy):
    projected, state, noise = inputs_of(device, 3, 5, 6, 12)
    stack: Any = (projected.requires_grad_(), state.requires_grad_() if has_state else None, noise if noisy else None)
    given = [part for part in stack[:2] if part is not None]

    def outcome(outputs):
        return [outputs, *torch.autograd.grad(outputs.square().sum(), given)]

    axes = tuple(None if part is None else 0 for part in stack)
    together = torch.func.vmap(positive, in_dims=axes)(*stack)
    alone = [positive(*(None if part is None else part[i] for part in stack)) for i in range(3)]
    for one, other in zip(outcome(together), outcome(torch.stack(alone)), strict=True):
        assert torch.equal(one, other)


def test_the_layer_computes_with_the_kernel_what_it_computes_with_the_scan(device, monkeypatch):
    layer = MinGRU(update_bias=-1.0).build(8).to(device)
    x, noise = torch.randn(3, 7, 8, device=device), 0.3 * torch.randn(3, 7, 8, device=device)
    whole, last = layer(x, noise=noise)
    first, state = layer(x[:, :4], noise=noise[:, :4])
    second, end = layer(x[:, 4:], state, noise[:, 4:])
    torch.testing.assert_close((torch.cat([first, second], dim=1), end), (whole, last))
    monkeypatch.setattr(module, "is_float32_on_gpu", lambda x: False)
    torch.testing.assert_close(layer(x, noise=noise), (whole, last))


def test_gates_that_are_shut_and_open_keep_and_replace_states(device):
    projected = torch.tensor([3.0, -200.0, 200.0, 1.0, 200.0, -200.0, -200.0, 200.0], device=device)
    projected = projected.expand(1, 40, 8).clone().requires_grad_()
    outputs = min_gru(projected, torch.ones(1, 4, device=device), None, True)
    expected = torch.tensor([3.5, 1.0, 1.0, 1.5], device=device).expand(1, 40, 4)
    torch.testing.assert_close(outputs, expected, rtol=1e-6, atol=0.0)
    (slope,) = torch.autograd.grad(outputs.sum(), projected)
    assert slope.isfinite().all()


def test_the_min_gru_keeps_nothing_for_a_gradient_but_its_inputs_and_outputs(device):
    projected, state, noise = inputs_of(device, 2, 3, 5, 8)
    stack: Any = (projected.requires_grad_(), state, noise)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part) or part, lambda part: part):
        outputs = torch.func.vmap(positive)(*stack)
        assert {part.data_ptr() for part in kept} == {projected.data_ptr(), state.data_ptr(), outputs.data_ptr()}
        kept.clear()
        with torch.no_grad():
            torch.func.vmap(positive)(*stack)
    assert not kept
