"""Attention that is not ours: torch's own modules, compiled, checkpointed, and in several processes."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from latebloom import DelayedAttention, at_step
from latebloom.errors import ConfigError


class Mixed(nn.Module):
    """A GRU, then torch's encoder layer: a hybrid as somebody might write it in ten lines."""

    def __init__(self, norm_first: bool = True, recompute: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.recurrence = nn.GRU(16, 16, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.logits = nn.Linear(16, 20)
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.recurrence(x)[0]
        x = checkpoint(self.layer, x, use_reentrant=False) if self.recompute else self.layer(x)
        return self.logits(x)


def build(**settings: Any) -> Mixed:
    torch.manual_seed(0)
    return Mixed(**settings)


def silenced(model: Mixed) -> Mixed:
    """The oracle: the same model with an attention whose output projection is zero."""
    silent = copy.deepcopy(model)
    nn.init.zeros_(silent.layer.self_attn.out_proj.weight)
    nn.init.zeros_(silent.layer.self_attn.out_proj.bias)
    return silent


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tokens = torch.randint(20, (4, 9))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.5),
}


def check_over_the_switch(model: nn.Module, optimizer: torch.optim.Optimizer, hold: Any, runs: Any = None) -> None:
    delay = DelayedAttention(model, optimizer, until=at_step(3), hold=hold)
    before = {name: parameter.detach().clone() for name, parameter in delay.parameters().items()}
    for number in range(6):
        step(model if runs is None else runs, optimizer)
        moved = [name for name, parameter in delay.parameters().items() if not torch.equal(parameter, before[name])]
        assert len(moved) == (0 if number < 3 else len(before)), (number, moved)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_encoder_layer_is_left_out_also_on_its_fast_path(norm_first, training):
    """In eval mode without gradients the layer has a fused path that does not call its attention module."""
    model = build(norm_first=norm_first).train(training)
    silent, tokens = silenced(model), torch.randint(20, (4, 9))
    with torch.inference_mode():
        before = model(tokens)
        delay = DelayedAttention(model, OPTIMIZERS["adamw"](model.parameters()), until=at_step(3))
        assert list(delay.found.matched) == ["layer.self_attn"]
        for _ in range(2):
            torch.testing.assert_close(model(tokens), silent(tokens))
        delay.remove()
        assert torch.equal(model(tokens), before)


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_does_not_move_and_then_it_does(kind, hold):
    model = build()
    check_over_the_switch(model, OPTIMIZERS[kind](model.parameters()), hold)


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_activation_checkpointing(hold):
    model = build(recompute=True)
    check_over_the_switch(model, OPTIMIZERS["adamw"](model.parameters()), hold)


# Dynamo itself reads .grad of the tensors that it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_a_compiled_model(hold):
    torch.compiler.reset()
    model = build()
    compiled = torch.compile(model, backend="aot_eager")
    check_over_the_switch(model, OPTIMIZERS["adamw"](model.parameters()), hold, runs=compiled)


def test_gradients_that_are_held_back_do_not_count_in_clipping():
    model = build()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    delay = DelayedAttention(model, optimizer, until=at_step(3), hold="freeze")
    tokens = torch.randint(20, (4, 9))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert all(parameter.grad is None for parameter in delay.parameters().values())
    held = {id(parameter) for parameter in delay.parameters().values()}
    squares = [float(p.grad.square().sum()) for p in model.parameters() if id(p) not in held and p.grad is not None]
    assert float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)) == pytest.approx(sum(squares) ** 0.5, rel=1e-4)


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_that_grad_scaler_leaves_out_does_not_count(kind, hold):
    """On an overflow it does not call the optimizer, or tells a fused one to do nothing; weights show what happened."""
    model = build()
    optimizer = OPTIMIZERS[kind](model.parameters())
    delay = DelayedAttention(model, optimizer, until=at_step(2), hold=hold)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    seen = []
    for overflow in (True, False, True, True, False, True, False):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        tokens = torch.randint(20, (4, 9))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        assert bool(moved) == (not overflow)
        seen.append((delay.step, delay.holding, moved >= set(delay.parameters())))
    waiting, stepped, let_in = (0, True, False), (1, True, False), (2, False, False)
    assert seen == [waiting, stepped, stepped, stepped, let_in, let_in, (3, False, True)]


class Flat(nn.Module):
    """Attention right in the model that takes the tokens, with a residual path of its own or without."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.embedding, self.recurrence = nn.Embedding(20, 16), nn.LSTM(16, 16, batch_first=True)
        self.attention, self.logits = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 20)
        self.residual = residual

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.recurrence(self.embedding(tokens))[0]
        attended = self.attention(x, x, x, need_weights=False)[0]
        return self.logits(x + attended if self.residual else attended)


@pytest.mark.parametrize("example", [None, {"tokens": torch.arange(16).view(2, 8)}])
def test_attention_without_a_residual_path_is_refused_unless_it_is_only_frozen(example):
    good, bad = Flat(residual=True), Flat(residual=False)
    DelayedAttention(good, OPTIMIZERS["sgd"](good.parameters()), until=at_step(2), example=example)
    with pytest.raises(ConfigError, match=r"attention .MultiheadAttention. has no residual path in Flat"):
        DelayedAttention(bad, OPTIMIZERS["sgd"](bad.parameters()), until=at_step(2), example=example)
    check_over_the_switch(bad, OPTIMIZERS["adamw"](bad.parameters()), "freeze")


@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_encoder_layer_has_a_residual_path(norm_first):
    """Behind the norm of a post-norm layer a constant that is added to the input would not be seen."""
    model = build(norm_first=norm_first)
    delay = DelayedAttention(model, OPTIMIZERS["sgd"](model.parameters()), until=at_step(2))
    assert delay.found.matched == ("layer.self_attn",)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("example", [torch.arange(16).view(2, 8), (torch.arange(16).view(2, 8),)])
def test_an_example_may_be_given_by_position(example):
    model = Flat(residual=True)
    delay = DelayedAttention(model, OPTIMIZERS["sgd"](model.parameters()), until=at_step(2), example=example)
    assert delay.found.matched == ("attention",)


def test_an_example_that_does_not_fit_is_one_sentence():
    model = Flat(residual=True)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with pytest.raises(ConfigError) as error:
        DelayedAttention(model, optimizer, until=at_step(2), example={"input_ids": torch.zeros(2, 8).long()})
    assert str(error.value) == (
        "example: missing a required argument: 'tokens'; it must have the arguments of one small forward pass of Flat, "
        "such as {'tokens': ...}"
    )
    with pytest.raises(ConfigError, match="the forward pass of Flat failed: index out of range in self"):
        DelayedAttention(model, optimizer, until=at_step(2), example=torch.full((2, 8), 50))


def test_a_caller_that_asks_for_the_weights_of_torchs_attention_gets_them():
    class Weighted(Flat):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.recurrence(self.embedding(tokens))[0]
            attended, weights = self.attention(x, x, x)
            return self.logits(x + attended) + 0.0 * weights.mean()

    model = Weighted(residual=True)
    check_over_the_switch(model, OPTIMIZERS["adamw"](model.parameters()), "bypass")


def test_what_is_no_trigger_is_refused():
    model = build()
    with pytest.raises(ConfigError, match="until: 3 is not a trigger"):
        DelayedAttention(model, OPTIMIZERS["sgd"](model.parameters()), until=3)  # type: ignore[arg-type] (wrong)


def test_automatic_and_by_hand_do_not_mix():
    model = build()
    delay = DelayedAttention(model, OPTIMIZERS["sgd"](model.parameters()), until=at_step(2))
    with pytest.raises(ConfigError, match=r"the optimizer's own steps advance this delay"):
        delay.after_step()


def train_between_processes(way: str, hold: Any) -> dict[str, torch.Tensor]:
    dist.init_process_group("gloo")
    model = build()
    runs: nn.Module = model
    if way == "ddp":
        runs = DistributedDataParallel(model)  # as it is: no find_unused_parameters
    else:
        fully_shard(model.layer)
        fully_shard(model)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    delay = DelayedAttention(model, optimizer, until=at_step(3), hold=hold, warmup_steps=2)

    def values(parameters: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
        whole = {name: p.full_tensor() if way == "fsdp" else p for name, p in parameters}
        return {name: value.detach().clone() for name, value in whole.items()}

    before = values(delay.parameters().items())
    torch.manual_seed(100 + dist.get_rank())  # other data on every rank
    for number in range(6):
        step(runs, optimizer)
        after = values(delay.parameters().items())
        moved = [name for name, value in after.items() if not torch.equal(value, before[name])]
        assert len(moved) == (0 if number < 3 else len(before)), (number, moved)
    return values(model.named_parameters())


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_stay_the_same_across_the_switch(way, hold):
    first, second = run_ranks(train_between_processes, way, hold)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
