"""Accelerate: the delay over the switch, over a resume, and what is refused."""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from families import build
from muon_and_adamw import muon_and_adamw
from switching import (
    BATCH,
    LENGTH,
    TRACKING,
    ThirdStep,
    Weights,
    check_switch_after_two_steps,
    same,
    weights,
)

from latebloom.delay import DelayedAttention, at_fraction, at_step, at_tokens, when, when_plateau
from latebloom.errors import ConfigError
from latebloom.integrations.accelerate import delayed_attention

DATA = list(torch.randint(3, 64, (8, BATCH, LENGTH), generator=torch.manual_seed(0)))


@pytest.fixture(autouse=True)
def _fresh_accelerate():
    """Accelerate keeps its settings for the whole process."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Loop:
    """The loop of Accelerate's documentation."""

    def __init__(
        self,
        family: str = "bamba",
        seed: int = 0,
        clip: float | None = None,
        delayed: bool = True,
        make: Callable[[Any], list[torch.optim.Optimizer]] = lambda p: [torch.optim.AdamW(p, 1e-2, weight_decay=0.5)],
        **settings: Any,
    ) -> None:
        named = {
            key: settings.pop(key) for key in ("mixed_precision", "gradient_accumulation_steps") if key in settings
        }
        self.accelerator, self.clip = Accelerator(cpu=True, **named), clip
        model = build(family, seed)
        model.train()
        self.model, *self.optimizers = self.accelerator.prepare(model, *make(model.parameters()))
        self.delay: Any = None
        if delayed:
            given = self.optimizers if len(self.optimizers) > 1 else self.optimizers[0]
            self.delay = delayed_attention(self.accelerator, self.model, given, **settings)
        self.batches = 0

    def train(self, batches: int) -> "Loop":
        for batch in islice(cycle(DATA), self.batches, self.batches + batches):
            self.before_batch(batch)
            with self.accelerator.accumulate(self.model):
                loss = self.model(input_ids=batch, labels=batch, use_cache=False).loss
                self.accelerator.backward(loss)
                if self.clip is not None and self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                for optimizer in self.optimizers:
                    optimizer.step()
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
        self.batches += batches
        return self

    def before_batch(self, batch: torch.Tensor) -> None:
        """What a loop does for its trigger."""

    def weights(self) -> Weights:
        return weights(self.accelerator.unwrap_model(self.model))

    def weights_by_step(self, batches: int, first: int = 0) -> dict[int, Weights]:
        """Train up to step 4, of so many batches each."""
        at = {first: self.weights()}
        for step in range(first, 4):
            at[step + 1] = self.train(batches).weights()
        return at


@pytest.mark.parametrize("hold", ["bypass", "freeze"])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bamba", {}),
        ("qwen3_next", {}),
        ("bamba", {"gradient_accumulation_steps": 2, "clip": 0.01}),
        ("bamba", {"mixed_precision": "bf16"}),
    ],
    ids=["bamba", "qwen3_next", "accumulated and clipped", "bf16"],
)
def test_attention_stands_still_until_the_switch_and_moves_after_it(family, settings, hold):
    loop = Loop(family, until=at_step(2), hold=hold, **settings)
    check_switch_after_two_steps(loop.delay, loop.weights_by_step(settings.get("gradient_accumulation_steps", 1)))


def test_nothing_happens_between_optimizer_steps():
    loop = Loop(until=at_step(2), gradient_accumulation_steps=3)
    gates = [loop.train(1).delay.gate for _ in range(7)]
    assert gates == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_held_back_attention_does_not_count_in_the_norm_that_is_clipped(accumulated):
    """The oracle is a model whose attention cannot be trained at all: the rest moves bit for bit alike."""
    loop = Loop(until=at_step(3), hold="freeze", clip=0.01, gradient_accumulation_steps=accumulated)
    loop.train(2 * accumulated)
    oracle = Loop(delayed=False, clip=0.01, gradient_accumulation_steps=accumulated)
    for name in loop.delay.parameters():
        oracle.model.get_parameter(name).requires_grad_(False)
    assert same(loop.weights(), oracle.train(2 * accumulated).weights())


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("saved", [1, 2, 3], ids=["before", "at", "after"])
def test_a_run_resumed_on_either_side_of_the_switch_ends_bit_for_bit_alike(tmp_path, saved, accumulated):
    settings: dict[str, Any] = {"until": at_step(2), "gradient_accumulation_steps": accumulated}
    whole = Loop(**settings).train(saved * accumulated)
    whole.accelerator.save_state(str(tmp_path))
    whole.train((4 - saved) * accumulated)
    resumed = Loop(seed=1, **settings)
    resumed.accelerator.load_state(str(tmp_path))
    resumed.batches = saved * accumulated
    check_switch_after_two_steps(resumed.delay, resumed.weights_by_step(accumulated, first=saved), first=saved)
    assert same(resumed.weights(), whole.weights())


@pytest.mark.parametrize("saved", [1, 2, 3], ids=["before", "at", "in the warm-up"])
def test_two_optimizers_and_a_warm_up_also_over_a_resume(tmp_path, saved):
    settings: dict[str, Any] = {"until": at_step(2), "warmup_steps": 3, "make": muon_and_adamw}
    whole = Loop(gradient_accumulation_steps=2, **settings).train(saved * 2)
    whole.accelerator.save_state(str(tmp_path))
    whole.train((4 - saved) * 2)
    resumed = Loop(seed=1, gradient_accumulation_steps=2, **settings)
    resumed.accelerator.load_state(str(tmp_path))
    resumed.batches = saved * 2
    check_switch_after_two_steps(resumed.delay, resumed.weights_by_step(2, first=saved), first=saved)
    assert same(resumed.weights(), whole.weights())
    assert resumed.delay.stage.rate == 1.0


def test_at_tokens_counts_what_the_loop_tells_also_over_a_resume(tmp_path):
    class Counting(Loop):
        def before_batch(self, batch: torch.Tensor) -> None:
            self.delay.count_tokens(batch.numel())

    loop = Counting(until=at_tokens(3 * BATCH * LENGTH, latest=9)).train(2)
    loop.accelerator.save_state(str(tmp_path))
    resumed = Counting(until=at_tokens(3 * BATCH * LENGTH, latest=9))
    resumed.accelerator.load_state(str(tmp_path))
    for one in (loop, resumed):
        assert one.train(1).delay.switch_step == 3
        assert one.delay.switch_reason == "36 tokens were seen"


def test_a_plateau_of_what_the_loop_reports_ends_the_delay():
    class Reporting(Loop):
        def before_batch(self, batch: torch.Tensor) -> None:
            self.delay.report(1.0)

    loop = Reporting(until=when_plateau(latest=9, patience=2, metric="risk")).train(4)
    assert loop.delay.switch_step == 3
    assert "risk did not improve" in loop.delay.switch_reason


def test_what_was_reported_before_a_checkpoint_counts_after_a_resume(tmp_path):
    until = when_plateau(latest=9, patience=1)
    loop = Loop(until=until).train(1)
    loop.delay.report(1.0)
    loop.delay.report(1.0)
    loop.accelerator.save_state(str(tmp_path))
    resumed = Loop(until=until)
    resumed.accelerator.load_state(str(tmp_path))
    assert loop.train(1).delay.switch_step == 2
    assert resumed.train(1).delay.switch_step == 2


def test_a_condition_of_ones_own_is_asked_after_every_optimizer_step():
    third = ThirdStep()
    loop = Loop(until=when(third, latest=9), gradient_accumulation_steps=2).train(8)
    assert third.asked == [(1, None), (2, None), (3, None)]
    assert loop.delay.switch_reason == "the condition was met"


def test_when_beyond_takes_a_measure_of_ones_own_and_remembers_its_checks_over_a_resume(tmp_path):
    loop = Loop(**TRACKING).train(2)
    loop.accelerator.save_state(str(tmp_path))
    resumed = Loop(**TRACKING)
    resumed.accelerator.load_state(str(tmp_path))
    for one in (loop, resumed):
        assert one.train(1).delay.switch_step == 3


def test_at_fraction_takes_the_number_of_steps():
    assert Loop(until=at_fraction(0.5), steps=4).train(3).delay.switch_step == 2
    with pytest.raises(ConfigError, match=r"at_fraction 0\.5 needs the total number of steps; give `steps`"):
        Loop(until=at_fraction(0.5))


def test_at_tokens_without_anyone_who_counts_is_refused():
    loop = Loop(until=at_tokens(10, latest=3))
    with pytest.raises(ConfigError, match=r"at_tokens has no tokens; call delay\.count_tokens\(tokens\)"):
        loop.train(1)


def test_a_trigger_that_fires_only_after_the_last_step_is_refused():
    with pytest.raises(ConfigError, match="is not before the last step 4; choose a step from 1 to 3"):
        Loop(until=at_step(4), steps=4)


@pytest.mark.parametrize("others", [0, 1])
def test_a_checkpoint_that_was_saved_without_the_delay_is_refused_before_anything_is_loaded(tmp_path, others):
    """Also where the checkpoint holds something else of the user's."""
    saved = Loop(seed=1, delayed=False)
    for _ in range(others):
        saved.accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
    saved.train(1).accelerator.save_state(str(tmp_path))
    loop = Loop(until=at_step(3))
    before = loop.weights()
    with pytest.raises(ConfigError, match="was saved without the delay"):
        loop.accelerator.load_state(str(tmp_path))
    assert same(loop.weights(), before)


def test_an_optimizer_without_attention_is_refused_by_the_names_of_what_it_lacks():
    accelerator, model = Accelerator(cpu=True), build("bamba")
    rest = [parameter for name, parameter in model.named_parameters() if "self_attn" not in name]
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(rest))
    with pytest.raises(ConfigError, match=r"does not hold 8 .*model\.layers\.1\.self_attn\.q_proj\.weight"):
        delayed_attention(accelerator, prepared, optimizer, until=at_step(2))


def test_what_is_returned_is_the_delay_itself():
    assert isinstance(Loop(until=at_step(2)).delay, DelayedAttention)


def test_two_models_of_one_loop_keep_their_delays_apart(tmp_path):
    accelerator, delays = Accelerator(cpu=True), []
    for step in (1, 2):
        model = build("bamba")
        prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        delays.append(delayed_attention(accelerator, prepared, optimizer, until=at_step(step)))
        optimizer.step()
    accelerator.save_state(str(tmp_path))
    delays[0].load_state_dict(delays[1].state_dict())
    accelerator.load_state(str(tmp_path))
    assert [delay.holding for delay in delays] == [False, True]
