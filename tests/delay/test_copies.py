"""Copies of a delayed model follow the switch; pickled models keep the state that they were saved in."""

import copy
import io
from typing import Any

import pytest
import torch
from foreign import CausalSelfAttention, Inline, LanguageModel, Parallel, Residual, TorchAttention, gru
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from latebloom import DelayedAttention, SequenceModel, at_step, enable_attention, hybrid
from latebloom.errors import ConfigError

TOKENS = torch.arange(14).view(2, 7)
MODELS = {
    "own": lambda: SequenceModel(hybrid(width=16, blocks=2), 20),
    "torch": lambda: LanguageModel(Residual(gru()), Residual(TorchAttention(), nn.LayerNorm(16))),
    "hand-written": lambda: LanguageModel(Residual(gru()), Residual(CausalSelfAttention())),
    "inline": lambda: LanguageModel(Inline()),
    "parallel": lambda: LanguageModel(Parallel()),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *averaged: AveragedModel) -> None:
    for _ in range(steps):
        nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        for one in averaged:
            one.update_parameters(model)


def plain(name: str, weights: dict[str, Any]) -> nn.Module:
    """The same weights in a model that no delay has touched."""
    model = build(name)
    model.load_state_dict(dict(weights))  # without the mark
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("hold", ["bypass", "ramp"])
def test_a_copy_made_during_the_delay_follows_the_switch(name: str, hold: Any) -> None:
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    delay = DelayedAttention(model, optimizer, until=at_step(2), hold=hold, ramp_steps=2 * (hold == "ramp"))
    twin = copy.deepcopy(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    assert torch.equal(twin(TOKENS), model(TOKENS))
    assert not torch.equal(twin(TOKENS), plain(name, twin.state_dict())(TOKENS))
    train(model, optimizer, 6, average)
    assert not delay.holding
    for one, weights in ((twin, twin.state_dict()), (average, average.module.state_dict())):
        assert torch.equal(one(TOKENS), plain(name, weights)(TOKENS))
    delay.remove()
    assert torch.equal(twin(TOKENS), plain(name, twin.state_dict())(TOKENS))
    train(twin, torch.optim.AdamW(twin.parameters(), lr=1e-2), 1)
    assert torch.equal(twin(TOKENS), plain(name, twin.state_dict())(TOKENS))


@pytest.mark.parametrize("name", MODELS)
def test_a_pickled_model_runs_as_it_was_saved(name: str) -> None:
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    delay = DelayedAttention(model, optimizer, until=at_step(3))
    train(model, optimizer, 2)
    saved, during = io.BytesIO(), model(TOKENS)
    torch.save(model, saved)
    train(model, optimizer, 2)
    assert not delay.holding
    saved.seek(0)
    with pytest.warns(UserWarning, match="saved while its attention was held back") as caught:
        loaded = torch.load(saved, weights_only=False)
    assert len(caught) == 1
    assert torch.equal(loaded(TOKENS), during)
    enable_attention(loaded)
    assert torch.equal(loaded(TOKENS), plain(name, loaded.state_dict())(TOKENS))
    after = io.BytesIO()
    torch.save(model, after)
    after.seek(0)
    assert torch.equal(torch.load(after, weights_only=False)(TOKENS), model(TOKENS))


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_may_get_a_delay_of_its_own(name: str) -> None:
    model = build(name)
    delay = DelayedAttention(model, torch.optim.AdamW(model.parameters(), lr=1e-2), until=at_step(3))
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    own = DelayedAttention(twin, optimizer, until=at_step(1))
    assert own.found == delay.found
    train(twin, optimizer, 2)
    assert not own.holding
    assert torch.equal(twin(TOKENS), plain(name, twin.state_dict())(TOKENS))
    assert not torch.equal(model(TOKENS), plain(name, model.state_dict())(TOKENS))
    own.remove()
    assert all("forward" not in module.__dict__ for module in twin.modules())


def test_a_part_of_a_model_with_a_delay_and_a_model_around_it_get_no_second_one() -> None:
    model = build("torch")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    delay = DelayedAttention(model, optimizer, until=at_step(1))
    block = model.get_submodule("blocks.1")
    for other in (nn.Sequential(model), block, nn.Sequential(block)):
        with pytest.raises(ConfigError, match="has a delay already"):
            DelayedAttention(other, optimizer, until=at_step(1))
    assert not torch.equal(model(TOKENS), plain("torch", model.state_dict())(TOKENS))
    delay.remove()
