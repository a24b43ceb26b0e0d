"""Recurrences: the LSTM computes what the reference loop computes, and any other runs in stacks."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from latebloom import SequenceModel
from latebloom.engine.stacks import stack_key
from latebloom.errors import ConfigError
from latebloom.layers.lstm import LSTM, LSTMLayer
from latebloom.layers.lstm.operation import Weights, lstm_loop
from latebloom.layers.recurrence import Recurrence, RecurrentLayer
from latebloom.layers.stacking import call_per_model
from latebloom.models.settings import Model


@pytest.mark.parametrize(("batch", "tokens", "width"), [(1, 1, 4), (3, 9, 8), (64, 25, 64)])
def test_the_lstm_computes_what_the_loop_computes(batch, tokens, width):
    torch.manual_seed(batch)
    lstm = LSTMLayer(width).double()
    x = torch.randn(batch, tokens, width, dtype=torch.double, requires_grad=True)
    start = (torch.randn(batch, width).double(), torch.randn(batch, width).double())
    nothing = (torch.zeros(batch, width).double(), torch.zeros(batch, width).double())
    for state in (None, start):
        fast, fast_state = lstm(x, state)
        slow, *slow_state = lstm_loop(x, Weights(*lstm.parameters()), *(state or nothing))
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(fast_state, tuple(slow_state))
        weights = torch.randn_like(fast)
        inputs = [x, *lstm.parameters()]
        fast_grads = torch.autograd.grad((fast * weights).sum(), inputs)
        slow_grads = torch.autograd.grad((slow * weights).sum(), inputs)
        torch.testing.assert_close(fast_grads, slow_grads)


@dataclass(frozen=True, kw_only=True)
class GRU(Recurrence):
    """torch's GRU, with the defaults of a recurrence: a loop over the models of a stack, and no state noise."""

    name: Literal["test_gru"] = "test_gru"

    def build(self, width: int) -> "GRULayer":
        return GRULayer(width)

    def state_size(self, width: int) -> int:
        return width


class GRULayer(RecurrentLayer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x, state=None, noise=None):
        outputs, state = self.gru(x, state)
        return outputs, state


@pytest.mark.parametrize("recurrence", [GRU(), LSTM()], ids=lambda one: one.name)
def test_a_recurrence_goes_on_where_its_state_was_left(recurrence):
    layer = recurrence.build(8)
    x = torch.randn(2, 10, 8)
    whole, whole_state = layer(x, None)
    first, state = layer(x[:, :6], None)
    second, last_state = layer(x[:, 6:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last_state, whole_state)


def stack(models):
    names = dict(models[0].named_parameters())
    return {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models]).requires_grad_()
        for name in names
    }


@pytest.mark.parametrize("recurrence", [GRU(), LSTM()], ids=lambda one: one.name)
def test_a_stack_computes_what_each_model_computes_alone(recurrence):
    models = [SequenceModel(Model(width=8, blocks=2, recurrence=recurrence), 11).double() for _ in range(3)]
    parameters, tokens = stack(models), torch.randint(11, (3, 4, 6))
    together = vmap(lambda p, t: functional_call(models[0], p, (t,)))(parameters, tokens)
    alone = torch.stack([model(part) for model, part in zip(models, tokens, strict=True)])
    torch.testing.assert_close(together, alone)
    slope = torch.randn_like(alone)
    grads = torch.autograd.grad(together, list(parameters.values()), slope)
    alone.backward(slope)
    for name, grad in zip(parameters, grads, strict=True):
        expected = [dict(model.named_parameters())[name].grad for model in models]
        torch.testing.assert_close(list(grad), expected)


def test_in_a_stack_a_module_without_a_batching_rule_keeps_its_state_and_its_inputs_gradient():
    layers = [GRULayer(5).double() for _ in range(3)]
    parameters, x = stack(layers), torch.randn(3, 2, 4, 5, dtype=torch.double, requires_grad=True)

    def whole(p, x):
        return functional_call(CallPerModel(layers[0]), {f"layer.{name}": value for name, value in p.items()}, (x,))

    outputs, state = vmap(whole)(parameters, x)
    for i, layer in enumerate(layers):
        expected, expected_state = layer(x[i])
        torch.testing.assert_close((outputs[i], state[i]), (expected, expected_state))
    slope = torch.randn_like(outputs)
    (found,) = torch.autograd.grad(outputs, x, slope)
    expected = [torch.autograd.grad(layer(x)[0], x, slope) for layer, x, slope in zip(layers, x, slope, strict=True)]
    torch.testing.assert_close(found, torch.stack([gradient for (gradient,) in expected]))


class CallPerModel(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return call_per_model(self.layer, x, None)


def test_state_noise_is_refused_where_a_recurrence_does_not_support_it(tiny):
    noisy = replace(tiny, training=replace(tiny.training, state_noise=0.1))
    assert noisy.model.recurrence.state_noise
    with pytest.raises(
        ConfigError, match=r"training\.state_noise: the recurrence test_gru does not support state noise"
    ):
        replace(noisy, model=replace(tiny.model, recurrence=GRU()))


def test_a_recurrence_that_cannot_be_stacked_keeps_its_runs_out_of_stacks(tiny, monkeypatch):
    gru = replace(tiny, model=replace(tiny.model, recurrence=GRU()))
    assert stack_key(gru).hash == stack_key(replace(gru, seed=1)).hash
    monkeypatch.setattr(GRU, "stacking", "none")
    assert not gru.model.can_be_stacked
    assert stack_key(gru).hash != stack_key(replace(gru, seed=1)).hash
