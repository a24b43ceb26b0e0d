"""What holds for every kind of optimizer: held bit for bit, trained after the switch, resumed alike, and warmed up."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import transformers
from muon_and_adamw import Both, WithoutInit, muon_and_adamw
from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, Adam, AdamW, Optimizer, lr_scheduler

from latebloom import DelayedAttention, SequenceModel, at_step, hybrid
from latebloom.delay import optimizers as latebloom_optimizers
from latebloom.delay.policy import Delay, HookedDelay, stage_at
from latebloom.errors import ConfigError

Parameters = Iterable[nn.Parameter]
SWITCH, STEPS = 2, 6
BATCHES = torch.randint(20, (STEPS, 4, 9), generator=torch.Generator().manual_seed(3))


def schedule_free(kind: Any) -> Callable[[Parameters], Optimizer]:
    # By default RAdam's first steps change nothing.
    more: dict[str, Any] = {"silent_sgd_phase": False} if kind is RAdamScheduleFree else {}

    def make(parameters: Parameters) -> Optimizer:
        optimizer = kind(parameters, lr=1e-2, weight_decay=0.5, **more)
        optimizer.train()
        return optimizer

    return make


KINDS: dict[str, Callable[[Parameters], Any]] = {
    "muon and adamw": muon_and_adamw,
    "muon and adamw in one": Both,
    "muon and adamw in one without init": WithoutInit,
    "adafactor": lambda p: Adafactor(p, lr=1e-2, weight_decay=0.5),
    "transformers' adafactor": lambda p: transformers.Adafactor(p, lr=1e-2, relative_step=False, weight_decay=0.5),
    "schedule-free adamw": schedule_free(AdamWScheduleFree),
    "schedule-free sgd": schedule_free(SGDScheduleFree),
    "schedule-free radam": schedule_free(RAdamScheduleFree),
    "adamw foreach": lambda p: AdamW(p, lr=1e-2, weight_decay=0.5, foreach=True),
    "adamw fused": lambda p: AdamW(p, lr=1e-2, weight_decay=0.5, fused=True),
    "adam fused": lambda p: Adam(p, lr=1e-2, weight_decay=0.5, fused=True),
    "adamw with a tensor": lambda p: AdamW(p, lr=torch.tensor(1e-2), weight_decay=0.5, foreach=False),
    "sgd foreach": lambda p: SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.5, foreach=True),
    "sgd fused": lambda p: SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.5, fused=True),
}
OWN_LENGTH: dict[str, Callable[[Parameters], Any]] = {
    "lbfgs": lambda p: LBFGS(p, lr=0.1, max_iter=3, history_size=4),
    "lbfgs with a line search": lambda p: LBFGS(p, lr=0.1, max_iter=3, history_size=4, line_search_fn="strong_wolfe"),
    "transformers' adafactor with relative steps": lambda p: transformers.Adafactor(p, lr=None, weight_decay=0.5),
}
"""Optimizers without a learning rate that could be scaled."""


def build(seed: int = 0) -> SequenceModel:
    torch.manual_seed(seed)
    return SequenceModel(hybrid(width=16, blocks=1), 20)


def listed(optimizers: Any) -> list[Optimizer]:
    return optimizers if isinstance(optimizers, list) else [optimizers]


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def step(model: nn.Module, optimizers: Any, batch: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        model.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    if isinstance(optimizers, LBFGS):
        optimizers.step(closure)
        return
    closure()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for one in listed(optimizers):
        one.step()


def evaluate(optimizers: Any) -> None:
    """Switch schedule-free optimizers to the averaged weights and back, as a validation does."""
    for one in listed(optimizers):
        for mode in ("eval", "train") if hasattr(one, "eval") else ():
            getattr(one, mode)()


def bits(parameters: dict[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone().view(torch.int32) for name, parameter in parameters.items()}


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in first if not torch.equal(first[name], second[name])}


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
@pytest.mark.parametrize("kind", [*KINDS, *OWN_LENGTH])
def test_attention_is_held_bit_for_bit_and_all_of_it_is_trained_after_the_switch(kind, hold):
    model = build()
    optimizers = (KINDS | OWN_LENGTH)[kind](model.parameters())
    delay = DelayedAttention(model, optimizers, until=at_step(SWITCH), hold=hold)
    before, all_before = bits(delay.parameters()), bits(dict(model.named_parameters()))
    for number, batch in enumerate(BATCHES[:4]):
        step(model, optimizers, batch)
        evaluate(optimizers)
        moved = differing(before, bits(delay.parameters()))
        assert moved == (set(before) if number >= SWITCH else set()), number
    assert differing(all_before, bits(dict(model.named_parameters()))) == set(all_before)
    assert delay.switch_step == SWITCH


@pytest.mark.parametrize("saved", [1, 2, 3, 4], ids=["before", "at", "in the warm-up", "after the warm-up"])
@pytest.mark.parametrize("kind", [*KINDS, *OWN_LENGTH])
def test_a_resumed_run_is_the_same_bit_for_bit(kind, saved):
    def begin(seed: int) -> tuple[SequenceModel, Any, DelayedAttention]:
        model = build(seed)
        optimizers = (KINDS | OWN_LENGTH)[kind](model.parameters())
        warmup_steps = 0 if kind in OWN_LENGTH else 2
        delay = DelayedAttention(model, optimizers, until=at_step(SWITCH), hold="freeze", warmup_steps=warmup_steps)
        return model, optimizers, delay

    model, optimizers, delay = begin(0)
    states: list[Any] = []
    for number, batch in enumerate(BATCHES):
        if number == saved:
            states = copy.deepcopy([one.state_dict() for one in (model, *listed(optimizers), delay)])
        step(model, optimizers, batch)
    again, its_optimizers, its_delay = begin(1)
    for one, state in zip((again, *listed(its_optimizers), its_delay), states, strict=True):
        one.load_state_dict(state)
    for batch in BATCHES[saved:]:
        step(again, its_optimizers, batch)
    assert differing(bits(dict(model.named_parameters())), bits(dict(again.named_parameters()))) == set()


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "lambda": lambda one: lr_scheduler.LambdaLR(one, lambda number: 1 / (1 + number)),
    "multiplicative": lambda one: lr_scheduler.MultiplicativeLR(one, lambda number: 0.8),
    "cosine": lambda one: lr_scheduler.CosineAnnealingLR(one, STEPS),
    "one cycle": lambda one: lr_scheduler.OneCycleLR(one, 1e-2, STEPS),
    "plateau": lambda one: lr_scheduler.ReduceLROnPlateau(one, factor=0.5, patience=0),
}


def by_group(make: Any, model: nn.Module, attention: Iterable[nn.Parameter], mixed: bool) -> list[Optimizer]:
    """Optimizers of a model, with attention in groups of its own or in the groups of the rest."""
    ids = {id(parameter) for parameter in attention}
    optimizers = listed(make(list(model.parameters())))
    for optimizer in [] if mixed else optimizers:
        for group in list(optimizer.param_groups):
            inside = [p for p in group["params"] if id(p) in ids]
            group["params"] = [p for p in group["params"] if id(p) not in ids]
            optimizer.add_param_group({**group, "params": inside, "is_attention": True})
    return optimizers


@pytest.mark.parametrize(
    ("kind", "scheduler"),
    [("adamw foreach", name) for name in SCHEDULERS]
    + [(kind, "cosine") for kind in KINDS if "schedule-free" not in kind and "in one" not in kind],
)
@pytest.mark.parametrize("mixed", [True, False], ids=["groups with other parameters", "groups of its own"])
def test_the_warm_up_is_what_a_group_of_attention_with_a_scaled_learning_rate_does(kind, scheduler, mixed):
    """The oracle scales the learning rate of groups that hold attention alone by hand, without `warmup_steps`."""
    ends = []
    for is_oracle in (True, False):
        model = build()
        attention = [p for name, p in model.named_parameters() if name.startswith("blocks.0.1.")]
        optimizers = by_group(KINDS[kind], model, attention, mixed and not is_oracle)
        schedulers = [one for one in map(SCHEDULERS[scheduler], optimizers) if one is not None]
        delay = DelayedAttention(model, optimizers, until=at_step(SWITCH), warmup_steps=0 if is_oracle else 3)
        assert {id(p) for p in delay.parameters().values()} == {id(p) for p in attention}
        for number, batch in enumerate(BATCHES):
            factor = [1, 1, 1 / 3, 2 / 3, 1, 1][number]
            groups = [
                group for one in optimizers for group in one.param_groups if is_oracle and "is_attention" in group
            ]
            rates = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * factor
            seen = [[len(group["params"]) for group in one.param_groups] for one in optimizers]
            step(model, optimizers, batch)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
            assert seen == [[len(group["params"]) for group in one.param_groups] for one in optimizers]
            for one in schedulers:
                one.step(*([1.0] if scheduler == "plateau" else []))
        ends.append(bits(dict(model.named_parameters())))
    assert differing(*ends) == set()


@pytest.mark.parametrize("make", [Both, WithoutInit])
def test_the_warm_up_of_two_optimizers_in_one_is_that_of_the_two(make):
    ends = []
    for kind in (muon_and_adamw, make):
        model = build()
        attention = [p for name, p in model.named_parameters() if name.startswith("blocks.0.1.")]
        optimizers = kind([*attention])  # groups of attention alone, which wrapper and wrapped share
        rest = SGD([p for name, p in model.named_parameters() if not name.startswith("blocks.0.1.")], lr=0.1)
        DelayedAttention(model, [rest, *listed(optimizers)], until=at_step(SWITCH), warmup_steps=3)
        for batch in BATCHES:
            step(model, [rest, *listed(optimizers)], batch)
        ends.append(bits(dict(model.named_parameters())))
    assert differing(*ends) == set()


@pytest.mark.parametrize("kind", [AdamWScheduleFree, SGDScheduleFree, RAdamScheduleFree])
def test_attention_begins_in_a_schedule_free_optimizer_as_in_a_new_one(kind):
    """Their groups count steps, for the bias correction and the average; attention's count begins at the switch."""
    ends = []
    for is_oracle in (True, False):
        model = build()
        delay = DelayedAttention(model, until=at_step(3), automatic=False)
        attention = list(delay.parameters().values())
        rest = [p for p in model.parameters() if not any(p is other for other in attention)]
        delay.remove()
        optimizers = [schedule_free(kind)(rest), schedule_free(kind)(attention)] if is_oracle else []
        optimizers = optimizers or [schedule_free(kind)(model.parameters())]
        delay = DelayedAttention(model, optimizers, until=at_step(3), automatic=False)
        for number, batch in enumerate(BATCHES):
            loss_of(model, batch).backward()
            delay.before_step()
            for one in optimizers[: 1 if is_oracle and number < 3 else None]:
                one.step()
                one.zero_grad()
            delay.after_step()
            evaluate(optimizers)
        for one in optimizers:
            one.eval()  # type: ignore[attr-defined] (schedule-free optimizers have it)
        ends.append(bits(dict(model.named_parameters())))
    assert differing(*ends) == set()


@pytest.mark.parametrize("first", ["attention", "the rest"])
def test_lbfgs_begins_anew_at_the_switch(first):
    """Its memory describes a loss without attention, and lies at its first parameter, whichever that is."""
    ends = []
    for is_oracle in (True, False):
        model = build()
        parameters = sorted(model.named_parameters(), key=lambda pair: pair[0].startswith("blocks.0.1."))
        parameters = [parameter for _, parameter in parameters][:: -1 if first == "attention" else 1]
        optimizer = OWN_LENGTH["lbfgs"](parameters)
        delay = DelayedAttention(model, optimizer, until=at_step(SWITCH), hold="freeze")
        for number, batch in enumerate(BATCHES):
            if number == SWITCH and is_oracle:
                delay.remove()
                optimizer = OWN_LENGTH["lbfgs"](parameters)
            step(model, optimizer, batch)
        ends.append(bits(dict(model.named_parameters())))
    assert differing(*ends) == set()


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["adamw fused", "lbfgs", "schedule-free adamw"])
def test_gradients_that_a_closure_sets_within_the_step_are_dropped_too(kind, named, automatic):
    """As DistributedDataParallel does: no hook of the parameter sees them, and the step has begun."""
    model = build()
    optimizer = (KINDS | OWN_LENGTH)[kind](model.parameters())
    delay = DelayedAttention(model, optimizer, until=at_step(9), hold="freeze", automatic=automatic)
    before, rest = bits(delay.parameters()), model.logits.weight.detach().clone()

    def closure() -> torch.Tensor:
        loss = loss_of(model, BATCHES[0])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return loss

    for _ in range(2):
        loss = optimizer.step(closure=closure) if named else optimizer.step(closure)
        assert loss.ndim == 0
        if not automatic:
            delay.after_step()
    assert differing(before, bits(delay.parameters())) == set()
    assert not torch.equal(rest, model.logits.weight)


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_gradscaler_skips_counts_neither_for_the_delay_nor_for_the_warm_up(fused):
    model = build()
    ids = [id(p) for name, p in model.named_parameters() if "norm" in name]
    pair = [
        AdamW([p for p in model.parameters() if (id(p) in ids) == first], lr=1e-2, fused=fused)
        for first in (True, False)
    ]
    delay = DelayedAttention(model, pair, until=at_step(2), warmup_steps=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    stages = []
    for number in [0, 1, 1, 2, 3, 3, 4]:
        overflows = len(stages) in (1, 4)
        before = bits(dict(model.named_parameters()))
        scaler.scale(loss_of(model, BATCHES[number]) * (float("inf") if overflows else 1.0)).backward()
        for one in pair:
            scaler.step(one)
            one.zero_grad()
        scaler.update()
        assert (differing(before, bits(dict(model.named_parameters()))) == set()) == overflows
        stages.append((delay.step, delay.attention_held, delay.stage.rate))
    held, half, full = (True, 1.0), (False, 0.5), (False, 1.0)
    assert stages == [(1, *held), (1, *held), (2, *half), (3, *full), (3, *full), (4, *full), (5, *full)]


def test_the_delay_counts_the_steps_that_every_optimizer_of_attention_has_done():
    """Here they take turns, also over a resume in between."""

    def begin() -> tuple[SequenceModel, list[Optimizer], DelayedAttention]:
        model = build()
        pair = muon_and_adamw(model.parameters())
        return model, pair, DelayedAttention(model, pair, until=at_step(2))

    (model, pair, delay), seen = begin(), []
    for number in range(6):
        if number == 3:
            state = delay.state_dict()
            model, pair, delay = begin()
            delay.load_state_dict(state)
        loss_of(model, BATCHES[0]).backward()
        pair[number % 2].step()
        seen.append((delay.step, delay.holding))
    assert seen == [(0, True), (1, True), (1, True), (2, False), (2, False), (3, False)]


def test_an_optimizer_without_attention_does_not_count():
    model = build()
    attention = [p for name, p in model.named_parameters() if name.startswith("blocks.0.1.")]
    rest = [p for name, p in model.named_parameters() if not name.startswith("blocks.0.1.")]
    pair = [SGD(rest, lr=0.1), SGD(attention, lr=0.1)]
    delay = DelayedAttention(model, pair, until=at_step(2))
    for number in (0, 1, 1):
        loss_of(model, BATCHES[0]).backward()
        pair[number].step()
    assert delay.switch_step == 2


def test_an_optimizer_that_never_steps_is_named(monkeypatch):
    monkeypatch.setattr(latebloom_optimizers, "PATIENCE", 3)
    model = build()
    pair = muon_and_adamw(model.parameters())
    DelayedAttention(model, pair, until=at_step(1))
    step(model, pair[0], BATCHES[0])
    step(model, pair[0], BATCHES[0])
    with pytest.warns(UserWarning, match="AdamW holds parameters of attention and has not stepped in 3 steps"):
        step(model, pair[0], BATCHES[0])


def test_a_step_that_raises_an_error_in_the_warm_up_leaves_the_groups_whole():
    class Failing(SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise RuntimeError("out of memory")
            return super().step(closure)

    model = build()
    optimizer = Failing(model.parameters(), lr=0.1)
    delay = DelayedAttention(model, optimizer, until=at_step(1), warmup_steps=4)
    step(model, optimizer, BATCHES[0])
    whole = optimizer.state_dict()["param_groups"]
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        step(model, optimizer, BATCHES[0])
    assert optimizer.state_dict()["param_groups"] == whole
    optimizer.fails = False
    step(model, optimizer, BATCHES[0])
    assert optimizer.state_dict()["param_groups"] == whole
    assert (delay.step, delay.stage.rate) == (2, 0.5)


def test_a_step_in_the_warm_up_that_the_optimizer_does_not_do_in_python_is_refused():
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)
    delay = DelayedAttention(model, optimizer, until=at_step(1), warmup_steps=4, automatic=False)
    for _ in range(3):
        delay.before_step()
        optimizer.step()
        delay.after_step()
    delay.before_step()  # a captured step would be replayed here
    with pytest.raises(ConfigError, match=r"warmup_steps: 4 needs the optimizer's step\(\) in Python in every step"):
        delay.after_step()


def test_the_policy_says_the_factor():
    delay = HookedDelay(until=at_step(5), warmup_steps=4)
    assert [stage_at(delay, number, 5).rate for number in range(5, 11)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert stage_at(delay, 3, None).rate == 1.0
    assert stage_at(Delay(until=at_step(5)), 5, 5).rate == 1.0


@pytest.mark.parametrize("kind", OWN_LENGTH)
def test_a_warm_up_of_an_optimizer_that_has_no_learning_rate_is_refused(kind):
    model = build()
    with pytest.raises(ConfigError, match="finds the length of its steps itself, so there is no learning rate"):
        DelayedAttention(model, OWN_LENGTH[kind](model.parameters()), until=at_step(2), warmup_steps=3)


def test_mistakes_are_one_clear_error_each():
    model = build()
    optimizer = SGD(model.parameters(), lr=0.1)

    def refuses(message: str, optimizers: Any = optimizer, **settings: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            DelayedAttention(model, optimizers, until=at_step(3), **settings)

    refuses("optimizer: the list has the same SGD twice", [optimizer, optimizer])
    refuses("optimizer: the list is empty", [])
    refuses("optimizer: dict is not a torch.optim.Optimizer", {})
    refuses("does not hold 6 of attention's parameters", [SGD(model.embedding.parameters(), lr=0.1)])
    refuses("warmup_steps: -1 is not possible; it must be 0 or more", warmup_steps=-1)
    refuses("warmup_steps: 2.5 is not possible; it must be a whole number", warmup_steps=2.5)
    refuses("warmup_steps: 3 is not possible; it must be 0 with hold none", warmup_steps=3, hold="none")
    refuses("warmup_steps: 3 needs the optimizer", None, warmup_steps=3, automatic=False)
    one = DelayedAttention(model, optimizer, until=at_step(3))
    state = one.state_dict()
    one.remove()
    pair = DelayedAttention(model, muon_and_adamw(model.parameters()), until=at_step(3))
    with pytest.raises(ConfigError, match="the state of a delay with 1 optimizers, and this one has 2"):
        pair.load_state_dict(state)
    with pytest.raises(ConfigError, match=r"save that of delay\.state_dict\(\) and load it"):
        pair.load_state_dict(model.state_dict())
