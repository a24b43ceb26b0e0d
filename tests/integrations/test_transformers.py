"""Transformers' Trainer: the delay over the switch, over a resume, in the log, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from families import build
from muon_and_adamw import Both
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
from transformers import Trainer, TrainerCallback, TrainingArguments

from latebloom.delay import at_fraction, at_step, at_tokens, when, when_beyond, when_plateau
from latebloom.errors import ConfigError
from latebloom.integrations.transformers import DelayedAttentionCallback

DATA = [{"input_ids": row, "labels": row} for row in torch.randint(3, 64, (16, LENGTH), generator=torch.manual_seed(0))]


class Snapshots(TrainerCallback):
    """The model's weights after every optimizer step, by step; 0 is before the first."""

    def __init__(self) -> None:
        self.at: dict[int, Weights] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.on_step_end(args, state, control, **parts)

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.at[state.global_step] = weights(parts["model"])


def trainer_for(folder: Path, *callbacks: Any, model: Any = None, optimizer: Any = None, **arguments: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "weight_decay": 0.5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    chosen = TrainingArguments(output_dir=str(folder), **(settings | arguments))
    model = build("bamba") if model is None else model
    return Trainer(
        model=model,
        args=chosen,
        train_dataset=DATA,
        eval_dataset=DATA[:2],
        callbacks=list(callbacks),
        **(optimizer or {}),
    )


def logged(trainer: Trainer, name: str) -> list[float]:
    """The values of one metric in the log of the training steps, in order."""
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        ("bamba", {}),
        ("qwen3_next", {}),
        ("bamba", {"gradient_accumulation_steps": 2, "max_grad_norm": 0.01}),
        ("bamba", {"bf16": True}),
        ("bamba", {"gradient_checkpointing": True}),
        ("bamba", {"optim": "sgd", "optim_args": "momentum=0.9"}),
    ],
    ids=["bamba", "qwen3_next", "accumulated and clipped", "bf16", "gradient checkpointing", "sgd with momentum"],
)
@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_attention_stands_still_until_the_switch_and_moves_after_it(tmp_path, family, arguments, hold):
    seen, callback = Snapshots(), DelayedAttentionCallback(until=at_step(2), hold=hold)
    trainer_for(tmp_path, callback, seen, model=build(family), **arguments).train()
    check_switch_after_two_steps(callback.delay, seen.at)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_held_back_attention_does_not_count_in_the_norm_that_is_clipped(tmp_path, accumulated):
    """The oracle is a model whose attention cannot be trained at all: the rest moves bit for bit alike."""
    arguments: dict[str, Any] = {
        "max_grad_norm": 0.01,
        "gradient_accumulation_steps": accumulated,
        "lr_scheduler_type": "constant",
    }
    seen, callback = Snapshots(), DelayedAttentionCallback(until=at_step(2), hold="freeze")
    trainer_for(tmp_path / "delayed", callback, seen, **arguments).train()
    assert callback.delay is not None
    oracle = build("bamba")
    for name in callback.delay.parameters():
        oracle.get_parameter(name).requires_grad_(False)
    trainer_for(tmp_path / "oracle", model=oracle, **(arguments | {"max_steps": 2})).train()
    assert same(seen.at[2], weights(oracle))


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("saved", [1, 2, 3], ids=["before", "at", "after"])
def test_a_run_resumed_on_either_side_of_the_switch_ends_bit_for_bit_alike(tmp_path, saved, accumulated):
    arguments: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": accumulated}
    whole = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), **arguments)
    whole.train()
    callback, seen = DelayedAttentionCallback(until=at_step(2)), Snapshots()
    resumed = trainer_for(tmp_path, callback, seen, model=build("bamba", seed=1), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved}"))
    assert same(weights(resumed.model), weights(whole.model))
    check_switch_after_two_steps(callback.delay, seen.at, first=saved)


class MuonFactory:
    """How Trainer is told to make one optimizer of two."""

    def __call__(self, model: Any, **settings: Any) -> Both:
        return Both(model.parameters())


def adamw_with_a_schedule(model: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    return {"optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step))}


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "optimizers": (adamw_with_a_schedule, {}),
    "muon and adamw as optimizers": (lambda model: {"optimizers": (Both(model.parameters()), None)}, {}),
    "class": (lambda model: {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"lr": 1e-2})}, {}),
    "factory": (lambda model: {"optimizer_cls_and_kwargs": (MuonFactory, {})}, {}),
    "adafactor": (lambda model: {}, {"optim": "adafactor"}),
    "schedule-free": (lambda model: {}, {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant"}),
}
"""The ways to give Trainer an optimizer, besides its default."""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_an_optimizer_holds_warms_up_and_resumes(tmp_path, way):
    make, arguments = WAYS[way]
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "max_steps": 5, **arguments}

    def begin(seed: int) -> tuple[Trainer, DelayedAttentionCallback, Snapshots]:
        model, seen = build("bamba", seed=seed), Snapshots()
        callback = DelayedAttentionCallback(until=at_step(2), warmup_steps=3)
        return trainer_for(tmp_path, callback, seen, model=model, optimizer=make(model), **saving), callback, seen

    whole, callback, seen = begin(0)
    whole.train()
    check_switch_after_two_steps(callback.delay, seen.at)
    for saved in (2, 3):
        resumed, _, _ = begin(1)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved}"))
        assert same(weights(resumed.model), weights(whole.model))


def test_an_optimizer_of_a_subclass_of_trainer(tmp_path):
    class MuonTrainer(Trainer):
        def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
            self.optimizer = Both(hybrid.parameters())
            return self.optimizer

    hybrid, seen, callback = build("bamba"), Snapshots(), DelayedAttentionCallback(until=at_step(2))
    arguments = trainer_for(tmp_path).args
    MuonTrainer(hybrid, arguments, train_dataset=DATA, callbacks=[callback, seen]).train()
    check_switch_after_two_steps(callback.delay, seen.at)


def test_the_ramp_goes_on_where_it_was_after_a_resume(tmp_path):
    def callback() -> DelayedAttentionCallback:
        return DelayedAttentionCallback(until=at_step(1), hold="ramp", ramp_steps=3)

    whole = trainer_for(tmp_path, callback(), save_strategy="steps", save_steps=1)
    whole.train()
    assert logged(whole, "attention_gate") == [1 / 3, 2 / 3, 1.0, 1.0]
    resumed = trainer_for(tmp_path, callback(), model=build("bamba", seed=1))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(weights(resumed.model), weights(whole.model))


def test_gate_and_phase_stand_in_the_log_and_reach_the_reporters_behind_the_callback(tmp_path):
    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
            reported.append(dict(logs))

    reported: list[dict[str, float]] = []
    trainer = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), Reporter())
    trainer.train()
    assert logged(trainer, "attention_gate") == [0.0, 1.0, 1.0, 1.0]
    assert logged(trainer, "attention_held") == [1.0, 0.0, 0.0, 0.0]
    assert [entry["attention_gate"] for entry in reported if "loss" in entry] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_at_tokens_counts_the_tokens_of_the_steps_that_are_done(tmp_path, accumulated):
    in_two_steps = 2 * accumulated * BATCH * LENGTH
    arguments: dict[str, Any] = {"gradient_accumulation_steps": accumulated, "include_num_input_tokens_seen": True}
    callback = DelayedAttentionCallback(until=at_tokens(in_two_steps, latest=3))
    trainer_for(tmp_path, callback, save_strategy="steps", save_steps=1, **arguments).train()
    assert callback.delay is not None
    assert (callback.delay.switch_step, callback.delay.switch_reason) == (2, f"{in_two_steps} tokens were seen")
    again = DelayedAttentionCallback(until=at_tokens(in_two_steps + 1, latest=4))
    resumed = trainer_for(tmp_path, again, **(arguments | {"max_steps": 5}))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert again.delay is not None
    assert again.delay.switch_step == 3  # with what was seen before the checkpoint


def test_at_fraction_takes_the_steps_from_the_trainer(tmp_path):
    callback = DelayedAttentionCallback(until=at_fraction(0.75))
    trainer_for(tmp_path, callback).train()
    assert callback.delay is not None
    assert callback.delay.switch_step == 3


def test_a_plateau_of_the_logged_metric_ends_the_delay(tmp_path):
    """The learning rate is warmed up, so as a metric it only rises: the second value is the first without a fall."""
    callback = DelayedAttentionCallback(until=when_plateau(latest=5, patience=2, metric="learning_rate"))
    trainer = trainer_for(tmp_path, callback, max_steps=6, warmup_steps=6)
    trainer.train()
    assert callback.delay is not None
    assert callback.delay.switch_step == 4  # three logs, of which two without a fall, are known in the fourth step
    assert "did not improve" in str(callback.delay.switch_reason)


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_what_was_logged_before_a_checkpoint_counts_after_a_resume(tmp_path, saved):
    def callback() -> DelayedAttentionCallback:
        return DelayedAttentionCallback(until=when_plateau(latest=5, patience=2, metric="learning_rate"))

    arguments: dict[str, Any] = {"max_steps": 6, "warmup_steps": 6, "save_strategy": "steps", "save_steps": 1}
    trainer_for(tmp_path, callback(), **arguments).train()
    resumed = callback()
    trainer_for(tmp_path, resumed, **arguments).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved}"))
    assert resumed.delay is not None
    assert resumed.delay.switch_step == 4


def test_a_plateau_of_an_evaluation_is_seen(tmp_path):
    callback = DelayedAttentionCallback(until=when_plateau(latest=3, patience=1, improvement=0.9, metric="eval_loss"))
    trainer = trainer_for(tmp_path, callback, max_steps=4, eval_strategy="steps", eval_steps=1)
    trainer.train()
    assert callback.delay is not None
    assert callback.delay.switch_step == 3
    assert "eval_loss did not improve" in str(callback.delay.switch_reason)


def test_a_condition_of_ones_own_is_asked_after_every_optimizer_step(tmp_path):
    third = ThirdStep()
    callback = DelayedAttentionCallback(until=when(third, latest=4))
    trainer_for(tmp_path, callback, max_steps=5, gradient_accumulation_steps=2).train()
    assert third.asked == [(1, 5), (2, 5), (3, 5)]
    assert callback.delay is not None
    assert callback.delay.switch_reason == "the condition was met"


def test_when_beyond_takes_a_measure_of_ones_own_and_remembers_its_checks_over_a_resume(tmp_path):
    arguments: dict[str, Any] = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}
    whole, resumed = (
        DelayedAttentionCallback(**TRACKING),
        DelayedAttentionCallback(**TRACKING),
    )
    trainer_for(tmp_path, whole, **arguments).train()
    trainer_for(tmp_path, resumed, **arguments).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for one in (whole, resumed):
        assert one.delay is not None
        assert one.delay.switch_step == 3
        assert "state tracking at 3x was at 0.950" in str(one.delay.switch_reason)


def test_after_training_the_model_is_as_it_was_found(tmp_path):
    model = build("bamba")
    trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), model=model).train()
    assert not any("forward" in module.__dict__ for module in model.model.modules())


def test_one_callback_serves_one_training_after_another(tmp_path):
    """Also after a training that broke off, with the delay still in the model."""

    class BreakOff(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    callback = DelayedAttentionCallback(until=at_step(2))
    trainer = trainer_for(tmp_path, callback)
    trainer.add_callback(BreakOff())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(BreakOff)
    trainer.train()
    assert logged(trainer, "attention_held") == [1.0, 0.0, 0.0, 0.0]


def test_training_that_ends_before_the_switch_warns_and_leaves_attention_out(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            control.should_training_stop = True

    callback = DelayedAttentionCallback(until=at_step(3))
    trainer = trainer_for(tmp_path, callback, Stop())
    with pytest.warns(UserWarning, match="training ended before attention was enabled"):
        trainer.train()
    assert callback.delay is not None
    assert callback.delay.gate == 0.0


def test_a_best_model_of_before_the_switch_is_left_without_its_untrained_attention(tmp_path):
    callback = DelayedAttentionCallback(until=at_step(2))
    trainer = trainer_for(
        tmp_path,
        callback,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
    )
    trainer.compute_metrics = lambda prediction: {"score": -trainer.state.global_step}
    with pytest.warns(UserWarning, match="the best model is of step 1, before attention was enabled at step 2"):
        trainer.train()
    assert callback.delay is not None
    assert callback.delay.gate == 0.0


def test_at_tokens_without_the_trainers_count_is_refused(tmp_path):
    trainer = trainer_for(tmp_path, DelayedAttentionCallback(until=at_tokens(10, latest=3)))
    with pytest.raises(ConfigError, match="include_num_input_tokens_seen=True"):
        trainer.train()


@pytest.mark.parametrize("until", [at_step(4), when_plateau(latest=9)])
def test_a_trigger_that_fires_only_after_the_last_step_is_refused(tmp_path, until):
    with pytest.raises(ConfigError, match="is not before the last step 4; choose a step from 1 to 3"):
        trainer_for(tmp_path, DelayedAttentionCallback(until=until)).train()


def test_a_checkpoint_that_was_saved_without_the_callback_is_refused(tmp_path):
    trainer_for(tmp_path, save_strategy="steps", save_steps=2).train()
    trainer = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(3)))
    with pytest.raises(ConfigError, match="checkpoint at step 2 was saved without DelayedAttentionCallback"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_an_optimizer_without_attention_is_refused_by_the_names_of_what_it_lacks(tmp_path):
    model = build("bamba")
    rest = [parameter for name, parameter in model.named_parameters() if "self_attn" not in name]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(tmp_path), max_steps=4, report_to="none", use_cpu=True),
        train_dataset=DATA,
        callbacks=[DelayedAttentionCallback(until=at_step(2))],
        optimizers=(torch.optim.AdamW(rest), None),
    )
    with pytest.raises(
        ConfigError, match=r"the optimizer does not hold 8 .*model\.layers\.1\.self_attn\.q_proj\.weight"
    ):
        trainer.train()


def test_when_beyond_without_a_measure_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="when_beyond needs `measure`"):
        trainer_for(tmp_path, DelayedAttentionCallback(until=when_beyond(latest=3))).train()


def test_restoring_callbacks_by_the_trainer_is_refused_as_it_would_lose_the_settings(tmp_path):
    with pytest.raises(ConfigError, match="the delay is restored without it"):
        trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), restore_callback_states_from_checkpoint=True)
