"""What holding attention back must mean. Each guarantee of the design is a test here."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from latebloom import DelayedAttention, SequenceModel, at_step, hybrid, lstm, when_beyond
from latebloom.errors import ConfigError

HOLDS = ("bypass", "freeze", "ramp")
ATTENTION = re.compile(r"^blocks\.\d+\.1\.")


def build(seed=0, **settings) -> SequenceModel:
    torch.manual_seed(seed)
    return SequenceModel(hybrid(width=16, blocks=2, **settings), 20)


def delayed(model, hold: Any = "bypass", step=5, **more) -> DelayedAttention:
    ramp = 4 if hold == "ramp" else 0
    return DelayedAttention(model, until=at_step(step), hold=hold, ramp_steps=ramp, automatic=False, **more)


def optimizers(model) -> dict[str, torch.optim.Optimizer]:
    return {
        "adamw": torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5),
        "adamw-fused": torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5, fused=True),
        "sgd-momentum": torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.5),
    }


def one_step(model, delay, optimizer, clip=1.0, set_to_none=True) -> float:
    tokens = torch.randint(20, (4, 9))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    delay.before_step()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=set_to_none)
    delay.after_step()
    return float(norm)


def snapshot(parameters) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@pytest.mark.parametrize("hold", ["bypass", "ramp"])
def test_bypass_computes_exactly_what_the_model_without_attention_computes(hold):
    model, tokens = build(), torch.randint(20, (4, 9))
    bare = SequenceModel(lstm(width=16, blocks=2), 20)
    kept = {  # the MLP is part 2 of a block of the hybrid and part 1 of one without attention
        re.sub(r"^(blocks\.\d+)\.2\.", r"\1.1.", name): value
        for name, value in model.state_dict().items()
        if not ATTENTION.match(name)
    }
    bare.load_state_dict(kept)
    delayed(model, hold)
    assert torch.equal(model(tokens), bare(tokens))
    for first, second in zip(_gradients(model, tokens), _gradients(bare, tokens), strict=True):
        assert torch.equal(first, second)


def _gradients(model, tokens):
    model(tokens).square().mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_bypass_does_not_run_attention():
    model = build()
    calls = []
    for module in model.modules():
        if type(module).__name__ == "SelfAttention":
            module.register_forward_hook(lambda *_: calls.append(1))
    delay = delayed(model)
    calls.clear()  # the passes that showed what the model does
    model(torch.randint(20, (4, 9)))
    assert calls == []
    delay.remove()
    model(torch.randint(20, (4, 9)))
    assert calls == [1, 1]


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("kind", ["adamw", "adamw-fused", "sgd-momentum"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_attention_does_not_move_a_bit_during_the_delay_and_moves_after_it(hold, kind, set_to_none):
    """Also where gradients are zeroed instead of dropped: weight decay moves a parameter whose gradient is zero."""
    model = build()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = optimizers(model)[kind]
    delay = delayed(model, hold, step=5, optimizer=optimizer)
    before = snapshot(delay.parameters())
    rest = model.logits.weight.detach().clone()
    for _ in range(5):
        assert delay.holding
        one_step(model, delay, optimizer, set_to_none=set_to_none)
    for name, parameter in delay.parameters().items():
        assert torch.equal(parameter, before[name]), name
    assert not torch.equal(model.logits.weight, rest)
    assert not delay.holding
    one_step(model, delay, optimizer, set_to_none=set_to_none)
    for name, parameter in delay.parameters().items():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("kind", ["adamw", "adamw-fused", "sgd-momentum"])
@pytest.mark.parametrize("automatic", [False, True])
def test_with_hold_none_training_is_the_same_bit_for_bit_as_without_a_delay(kind, automatic):
    """On both sides of the switch: nothing is held, and nothing begins anew."""
    weights = []
    for compared in (True, False):
        model = build()
        optimizer = optimizers(model)[kind]
        delay = None
        if compared:
            delay = DelayedAttention(model, optimizer, until=at_step(3), hold="none", automatic=automatic)
            assert delay.holding
            assert not delay.attention_held
            assert "enabled from the start, for comparison" in repr(delay)
        by_hand = None if automatic else delay
        torch.manual_seed(1)
        for _ in range(6):
            tokens = torch.randint(20, (4, 9))
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            if by_hand is not None:
                by_hand.before_step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if by_hand is not None:
                by_hand.after_step()
        assert delay is None or delay.switch_step == 3
        weights.append(snapshot(dict(model.named_parameters())))
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_a_frozen_attention_still_carries_gradients_to_what_stands_before_it():
    """Freeze is not bypass: the output depends on attention, and so do the gradients below it."""
    tokens = torch.randint(20, (4, 9))
    frozen, bypassed = build(), build()
    delayed(frozen, "freeze")
    delayed(bypassed, "bypass")
    assert not torch.equal(frozen(tokens), bypassed(tokens))
    slopes = [
        torch.autograd.grad(model(tokens).square().mean(), model.embedding.weight)[0] for model in (frozen, bypassed)
    ]
    assert not torch.equal(*slopes)


def test_gradients_that_are_held_back_do_not_count_in_clipping():
    model = build()
    optimizer = optimizers(model)["sgd-momentum"]
    delay = delayed(model, "freeze")
    tokens = torch.randint(20, (4, 9))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    held = {id(parameter) for parameter in delay.parameters().values()}
    squares = [
        float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None and id(p) not in held
    ]
    assert all(parameter.grad is not None for parameter in delay.parameters().values())
    delay.before_step()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert float(norm) == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    optimizer.step()


def test_at_the_switch_attentions_optimizer_state_starts_fresh():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):  # trained before the delay was set: stale momentum lies in the optimizer
        model(torch.randint(20, (4, 9))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    delay = delayed(model, step=2, optimizer=optimizer)
    assert all(parameter in optimizer.state for parameter in delay.parameters().values())
    one_step(model, delay, optimizer)
    one_step(model, delay, optimizer)
    assert not delay.holding
    assert all(parameter not in optimizer.state for parameter in delay.parameters().values())
    assert float(optimizer.state[model.logits.weight]["step"]) == 5
    one_step(model, delay, optimizer)
    assert all(float(optimizer.state[p]["step"]) == 1 for p in delay.parameters().values())


def test_the_ramp_rises_to_one_and_then_leaves_no_trace():
    model, reference, tokens = build(), build(), torch.randint(20, (4, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    delay = delayed(model, "ramp", step=2)
    gates, outputs = [], []
    for _ in range(7):
        gates.append(delay.gate)
        outputs.append(model(tokens).detach())
        one_step(model, delay, optimizer)
    assert gates == [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    full = reference(tokens).detach()
    distances = [float((output - full).norm()) for output in outputs]
    assert distances == sorted(distances, reverse=True)
    assert torch.equal(outputs[-1], full)
    assert all(model.get_submodule(path).gate == 1.0 for path in delay.found.matched)


# Dynamo itself reads .grad of the tensors that it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("hold", HOLDS)
def test_a_compiled_model_follows_the_switch(hold):
    """Eager backend: the graph capture and its guards are what could miss the switch."""
    torch.compiler.reset()
    model, reference, tokens = build(), build(), torch.randint(20, (4, 9))
    compiled = torch.compile(model, backend="eager")
    delay = delayed(model, hold, step=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    held = compiled(tokens).detach()
    for _ in range(5):
        one_step(model, delay, optimizer)
    assert torch.equal(compiled(tokens), reference(tokens))
    if hold != "freeze":
        assert not torch.equal(held, reference(tokens))


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("cut", [2, 5, 7])
def test_its_state_survives_being_saved_and_restored_on_either_side_of_the_switch(hold, cut):
    def steps(model, delay, optimizer, count):
        for _ in range(count):
            one_step(model, delay, optimizer)

    torch.manual_seed(1)
    model = build()
    delay, optimizer = delayed(model, hold), torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    torch.manual_seed(2)
    steps(model, delay, optimizer, cut)
    saved = (
        delay.state_dict(),
        {k: v.clone() for k, v in model.state_dict().items()},
        optimizer.state_dict(),
        torch.get_rng_state(),
    )
    saved = copy.deepcopy(saved)
    steps(model, delay, optimizer, 9 - cut)

    other = build(seed=5)
    again, its_optimizer = delayed(other, hold), torch.optim.SGD(other.parameters(), lr=1e-2, momentum=0.9)
    other.load_state_dict(saved[1])
    its_optimizer.load_state_dict(saved[2])
    again.load_state_dict(saved[0])
    torch.set_rng_state(saved[3])
    steps(other, again, its_optimizer, 9 - cut)
    assert again.switch_step == delay.switch_step == 5
    assert again.switch_reason == delay.switch_reason == "step 5 was reached"
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_when_beyond_asks_the_measure_it_was_given():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    values = iter([0.5, 0.96, 0.97])
    delay = DelayedAttention(
        model, until=when_beyond(0.95, latest=50, every=2), measure=lambda m: next(values), automatic=False
    )
    for _ in range(6):
        assert delay.holding
        one_step(model, delay, optimizer)
    assert delay.switch_step == 6
    assert "0.970" in str(delay.switch_reason)


def test_mistakes_are_one_clear_error_each():
    model = build()
    with pytest.raises(ConfigError, match="'skip' is not known; choices: bypass, freeze, ramp"):
        delayed(model, "skip")
    with pytest.raises(ConfigError, match=r"ramp_steps: 0 .* 1 or more with hold ramp"):
        DelayedAttention(model, until=at_step(3), hold="ramp", automatic=False)
    with pytest.raises(ConfigError, match="the switch at step 10 is not before the last step 10"):
        delayed(model, step=10, steps=10)
    with pytest.raises(ConfigError, match="no softmax attention was found in SequenceModel"):
        delayed(SequenceModel(lstm(width=16, blocks=1), 20))
    delay = delayed(model)
    with pytest.raises(ConfigError, match="has a delay already"):
        delayed(model)
    with pytest.raises(ConfigError, match=r"after_step\(\) without before_step\(\)"):
        delay.after_step()
    delay.remove()
    with pytest.raises(ConfigError, match=r"does not hold 12 of attention's parameters.*blocks.0.1.norm.weight"):
        delayed(model, optimizer=torch.optim.SGD(model.embedding.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="give the optimizer"):
        DelayedAttention(model, until=at_step(3))
    frozen = build()
    for block in (0, 1):
        frozen.get_submodule(f"blocks.{block}.1").requires_grad_(False)
    with pytest.raises(ConfigError, match=r"requires_grad is off for all of attention's parameters \(blocks.0.1"):
        DelayedAttention(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1), until=at_step(3))
    assert "held back (bypass)" in repr(delayed(model))


@pytest.mark.parametrize("layout", ["ram", "mra", "arm"])
def test_printed_it_names_what_a_user_knows(layout):
    model = SequenceModel(replace(hybrid(width=16, blocks=2), layout=layout), 20)
    shown = str(delayed(model)).splitlines()
    at, recurrence = layout.index("a"), layout.index("r")
    assert shown[1:] == [
        f"  attention  blocks.0.{at}: SelfAttention",
        f"  attention  blocks.1.{at}: SelfAttention",
        f"  not held   blocks.0.{recurrence}: LSTMLayer mixes tokens without attention",
        f"  not held   blocks.1.{recurrence}: LSTMLayer mixes tokens without attention",
    ]
