"""Lightning: the delay over the switch, over a resume, in the log, and what is refused."""

from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from families import build
from lightning.pytorch.callbacks import ModelCheckpoint
from muon_and_adamw import muon_and_adamw
from switching import (
    BATCH,
    LENGTH,
    TRACKING,
    ThirdStep,
    Weights,
    check_switch_after_two_steps,
    moved,
    same,
    weights,
)
from torch.utils.data import DataLoader

from latebloom.delay import at_fraction, at_step, at_tokens, when, when_plateau
from latebloom.errors import ConfigError
from latebloom.integrations.lightning import DelayedAttention

pytestmark = [
    # Lightning advises worker processes; a dataset of a few rows needs none.
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    # Lightning uses a class of torch's that is deprecated.
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    # A resumed run writes its checkpoints into a folder of its own, which Lightning remarks.
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
]
DATA = list(torch.randint(3, 64, (12, LENGTH), generator=torch.manual_seed(0)))


class Hybrid(L.LightningModule):
    """A Transformers hybrid in the usual wrapping, trained by AdamW with decay."""

    def __init__(self, family: str = "bamba", seed: int = 0) -> None:
        super().__init__()
        self.model = build(family, seed)
        self.model.train()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.model(input_ids=batch, labels=batch, use_cache=False).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.5)


class Snapshots(L.Callback):
    """The module's weights after every batch, with the number of optimizer steps done; the first is before any."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Weights]] = []
        self.logged: list[dict[str, float]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seen.append((trainer.global_step, weights(pl_module)))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen.append((trainer.global_step, weights(pl_module)))
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    @property
    def at(self) -> dict[int, Weights]:
        return dict(self.seen)


def trainer_for(folder: Path, *callbacks: L.Callback, **settings: Any) -> L.Trainer:
    common: dict[str, Any] = {
        "max_steps": 4,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
        "log_every_n_steps": 1,
    }
    return L.Trainer(default_root_dir=folder, callbacks=list(callbacks), **(common | settings))


def every_step(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)


class Resumable(DataLoader):
    """Goes on within an epoch after a resume, as Lightning asks of a loader for a resume that is exact."""

    done = 0

    def __iter__(self) -> Any:
        for batch in islice(super().__iter__(), self.done, None):
            self.done = (self.done + 1) % len(self)
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def data(count: int = 12) -> DataLoader:
    return Resumable(DATA[:count], batch_size=BATCH)  # type: ignore[arg-type] (a list will do)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bamba", {}),
        ("qwen3_next", {}),
        ("bamba", {"gradient_clip_val": 0.01, "accumulate_grad_batches": 2}),
        ("bamba", {"precision": "bf16-mixed"}),
    ],
    ids=["bamba", "qwen3_next", "accumulated and clipped", "bf16"],
)
@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_attention_stands_still_until_the_switch_and_moves_after_it(tmp_path, family, settings, hold):
    seen, callback = Snapshots(), DelayedAttention(until=at_step(2), hold=hold)
    trainer_for(tmp_path, callback, seen, **settings).fit(Hybrid(family), data())
    check_switch_after_two_steps(callback.delay, seen.at)


def test_a_norm_behind_attention_is_held_back_with_it_also_within_a_lightning_module(tmp_path):
    seen, callback = Snapshots(), DelayedAttention(until=at_step(2))
    trainer_for(tmp_path, callback, seen).fit(Hybrid("olmo_hybrid"), data())
    norm = "model.model.layers.1.post_attention_layernorm.weight"
    assert torch.equal(seen.at[2][norm], seen.at[0][norm])
    assert not torch.equal(seen.at[3][norm], seen.at[2][norm])


@pytest.mark.parametrize("accumulated", [1, 2])
def test_held_back_attention_does_not_count_in_the_norm_that_is_clipped(tmp_path, accumulated):
    """The oracle is a module whose attention cannot be trained at all: the rest moves bit for bit alike."""
    settings: dict[str, Any] = {"gradient_clip_val": 0.01, "accumulate_grad_batches": accumulated}
    seen, callback = Snapshots(), DelayedAttention(until=at_step(2), hold="freeze")
    trainer_for(tmp_path, callback, seen, **settings).fit(Hybrid(), data())
    assert callback.delay is not None
    oracle = Hybrid()
    for name in callback.delay.parameters():
        oracle.get_parameter(name).requires_grad_(False)
    trainer_for(tmp_path, **(settings | {"max_steps": 2})).fit(oracle, data())
    assert same(seen.at[2], weights(oracle))


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("saved", [1, 2, 3], ids=["before", "at", "after"])
def test_a_run_resumed_on_either_side_of_the_switch_ends_bit_for_bit_alike(tmp_path, saved, accumulated):
    whole, module = Hybrid(), Hybrid(seed=1)
    settings: dict[str, Any] = {"accumulate_grad_batches": accumulated}
    callback = DelayedAttention(until=at_step(2))
    trainer_for(tmp_path, callback, every_step(tmp_path), **settings).fit(whole, data())
    callback, seen = DelayedAttention(until=at_step(2)), Snapshots()
    trainer = trainer_for(tmp_path, callback, seen, every_step(tmp_path / "resumed"), **settings)
    trainer.fit(module, data(), ckpt_path=str(tmp_path / f"step={saved}.ckpt"))
    assert same(weights(module), weights(whole))
    check_switch_after_two_steps(callback.delay, seen.at, first=saved)


def test_gate_and_phase_are_logged(tmp_path):
    seen = Snapshots()
    trainer = trainer_for(tmp_path, DelayedAttention(until=at_step(1), hold="ramp", ramp_steps=2), seen)
    trainer.fit(Hybrid(), data())
    assert [entry["attention_gate"] for entry in seen.logged] == [0.5, 1.0, 1.0, 1.0]
    assert [entry["attention_held"] for entry in seen.logged] == [0.0, 0.0, 0.0, 0.0]
    assert trainer.logged_metrics["attention_gate"] == 1.0
    seen = Snapshots()
    trainer_for(tmp_path, DelayedAttention(until=at_step(2)), seen).fit(Hybrid(), data())
    assert [entry["attention_gate"] for entry in seen.logged] == [0.0, 1.0, 1.0, 1.0]
    assert [entry["attention_held"] for entry in seen.logged] == [1.0, 0.0, 0.0, 0.0]


def test_at_fraction_takes_the_steps_from_the_trainer(tmp_path):
    callback = DelayedAttention(until=at_fraction(0.5))
    trainer_for(tmp_path, callback, max_steps=-1, max_epochs=1).fit(Hybrid(), data())
    assert callback.delay is not None
    assert callback.delay.switch_step == 3  # of the six batches of an epoch


def test_at_tokens_counts_what_the_training_step_tells(tmp_path):
    class Counting(Hybrid):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            assert callback.delay is not None
            callback.delay.count_tokens(batch.numel())
            return super().training_step(batch, index)

    callback = DelayedAttention(until=at_tokens(2 * 2 * BATCH * LENGTH, latest=3))
    trainer_for(tmp_path, callback, accumulate_grad_batches=2).fit(Counting(), data())
    assert callback.delay is not None
    assert (callback.delay.switch_step, callback.delay.switch_reason) == (2, "48 tokens were seen")


def test_a_plateau_of_a_metric_of_the_training_step_ends_the_delay(tmp_path):
    class Rising(Hybrid):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            self.log("risk", float(self.global_step))
            return super().training_step(batch, index)

    callback = DelayedAttention(until=when_plateau(latest=5, patience=2, metric="risk"))
    trainer_for(tmp_path, callback, max_steps=6).fit(Rising(), data())
    assert callback.delay is not None
    assert callback.delay.switch_step == 4  # three reports, of which two without a fall, are known in the fourth step
    assert "risk did not improve" in str(callback.delay.switch_reason)


class Validated(Hybrid):
    """Its validation never improves."""

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("risk", 1.0)


def test_a_plateau_of_a_validation_counts_validations_and_not_the_batches_between_them(tmp_path):
    callback = DelayedAttention(until=when_plateau(latest=9, patience=2, metric="risk"))
    trainer_for(tmp_path, callback, max_steps=10, val_check_interval=2).fit(Validated(), data(), data(2))
    assert callback.delay is not None
    assert callback.delay.switch_step == 7  # validated after steps 2, 4 and 6
    assert "risk did not improve" in str(callback.delay.switch_reason)


def test_what_was_reported_before_a_checkpoint_counts_after_a_resume(tmp_path):
    def callback() -> DelayedAttention:
        return DelayedAttention(until=when_plateau(latest=9, patience=2, metric="risk"))

    class AtValidation(L.Callback):
        def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "four.ckpt")

    settings: dict[str, Any] = {"max_steps": 10, "val_check_interval": 2, "num_sanity_val_steps": 0}
    trainer = trainer_for(tmp_path, callback(), AtValidation(), **settings)
    trainer.fit(Validated(), data(), data(2))
    resumed = callback()
    trainer_for(tmp_path, resumed, **settings).fit(Validated(), data(), data(2), ckpt_path=str(tmp_path / "four.ckpt"))
    assert resumed.delay is not None
    assert resumed.delay.switch_step == 7


def test_a_condition_of_ones_own_is_asked_after_every_optimizer_step(tmp_path):
    third = ThirdStep()
    callback = DelayedAttention(until=when(third, latest=4))
    trainer_for(tmp_path, callback, max_steps=5, accumulate_grad_batches=2).fit(Hybrid(), data())
    assert third.asked == [(1, 5), (2, 5), (3, 5)]
    assert callback.delay is not None
    assert callback.delay.switch_reason == "the condition was met"


def test_when_beyond_takes_a_measure_of_ones_own_and_remembers_its_checks_over_a_resume(tmp_path):
    whole, resumed = DelayedAttention(**TRACKING), DelayedAttention(**TRACKING)
    trainer_for(tmp_path, whole, every_step(tmp_path), max_steps=5).fit(Hybrid(), data())
    trainer = trainer_for(tmp_path, resumed, every_step(tmp_path / "resumed"), max_steps=5)
    trainer.fit(Hybrid(), data(), ckpt_path=str(tmp_path / "step=2.ckpt"))
    for one in (whole, resumed):
        assert one.delay is not None
        assert one.delay.switch_step == 3
        assert "state tracking at 3x was at 0.950" in str(one.delay.switch_reason)


def test_after_training_the_module_is_as_it_was_found(tmp_path):
    module = Hybrid()
    trainer_for(tmp_path, DelayedAttention(until=at_step(2))).fit(module, data())
    assert not any("forward" in one.__dict__ for one in module.modules())


def test_a_second_fit_of_the_same_trainer_goes_on_where_the_first_ended(tmp_path):
    callback, module, seen = DelayedAttention(until=at_step(2)), Hybrid(), Snapshots()
    trainer = trainer_for(tmp_path, callback, seen, max_steps=-1, max_epochs=1)
    trainer.fit(module, data())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, data())
    assert callback.delay is not None
    assert (callback.delay.step, callback.delay.switch_step) == (12, 2)
    assert [entry["attention_held"] for entry in seen.logged] == [1.0] + [0.0] * 11


def test_training_that_ends_before_the_switch_warns_and_leaves_attention_out(tmp_path):
    class Stop(L.Callback):
        def on_train_batch_end(
            self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            trainer.should_stop = True

    callback = DelayedAttention(until=at_step(3))
    with pytest.warns(UserWarning, match="training ended before attention was enabled"):
        trainer_for(tmp_path, callback, Stop()).fit(Hybrid(), data())
    assert callback.delay is not None
    assert callback.delay.gate == 0.0


def test_at_tokens_without_anyone_who_counts_is_refused(tmp_path):
    trainer = trainer_for(tmp_path, DelayedAttention(until=at_tokens(10, latest=3)))
    with pytest.raises(ConfigError, match=r"at_tokens has no tokens; call delay\.count_tokens\(tokens\)"):
        trainer.fit(Hybrid(), data())


@pytest.mark.parametrize("settings", [{"max_steps": 4}, {"max_steps": -1, "max_epochs": 1, "limit_train_batches": 4}])
def test_a_trigger_that_fires_only_after_the_last_step_is_refused(tmp_path, settings):
    with pytest.raises(ConfigError, match="is not before the last step 4; choose a step from 1 to 3"):
        trainer_for(tmp_path, DelayedAttention(until=at_step(4)), **settings).fit(Hybrid(), data())


def test_a_checkpoint_that_was_saved_without_the_callback_is_refused(tmp_path):
    trainer_for(tmp_path, every_step(tmp_path), max_steps=2).fit(Hybrid(), data())
    trainer = trainer_for(tmp_path, DelayedAttention(until=at_step(3)), every_step(tmp_path / "resumed"))
    with pytest.raises(ConfigError, match="checkpoint at step 2 was saved without DelayedAttention"):
        trainer.fit(Hybrid(), data(), ckpt_path=str(tmp_path / "step=2.ckpt"))


def test_an_optimizer_without_attention_is_refused_by_the_names_of_what_it_lacks(tmp_path):
    class Partial(Hybrid):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW([p for name, p in self.named_parameters() if "self_attn" not in name])

    with pytest.raises(ConfigError, match=r"does not hold 8 .*model\.model\.layers\.1\.self_attn\.q_proj\.weight"):
        trainer_for(tmp_path, DelayedAttention(until=at_step(2))).fit(Partial(), data())


class Manual(Hybrid):
    """Manual optimization of a hybrid and a critic; `every` says in which batches each optimizer steps."""

    def __init__(self, kind: str = "muon and adamw", every: tuple[int, ...] = (1, 1), seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.automatic_optimization = False
        self.critic = torch.nn.Linear(2, 2)
        self.kind, self.every = kind, every

    def configure_optimizers(self) -> Any:
        if self.kind == "muon and adamw":
            return muon_and_adamw(self.parameters())
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.5)
        return optimizer if self.kind == "one" else [optimizer, torch.optim.SGD(self.critic.parameters(), lr=0.1)]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.manual_backward(loss + self.critic.weight.sum())
        optimizers: Any = [self.optimizers()] if self.kind == "one" else self.optimizers()
        for optimizer, every in zip(optimizers, self.every, strict=True):
            if (index + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
        return loss


@pytest.mark.parametrize(
    ("kind", "every", "batches"),
    [
        ("one", (1,), [1, 2, 3, 4]),
        ("muon and adamw", (1, 1), [1, 2, 3, 4]),
        ("muon and adamw", (1, 2), [2, 4, 6, 8]),
        ("hybrid and critic", (1, 3), [1, 2, 3, 4]),
        ("hybrid and critic", (3, 1), [3, 6, 9, 12]),
    ],
)
@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_manual_optimization(tmp_path, kind, every, batches, hold):
    """A step of the delay is one that each optimizer with parameters of attention has done."""
    seen, callback = Snapshots(), DelayedAttention(until=at_step(2), hold=hold, warmup_steps=2)
    module = Manual(kind, every)
    trainer = trainer_for(tmp_path, callback, seen, max_steps=-1, max_epochs=1, limit_train_batches=batches[-1])
    trainer.fit(module, DataLoader(DATA, batch_size=1))  # type: ignore[arg-type] (a list will do)
    at = [weights for _, weights in seen.seen]
    check_switch_after_two_steps(callback.delay, {step: at[batch] for step, batch in enumerate([0, *batches])})
    assert callback.delay is not None
    assert callback.delay.step == 4
    assert not moved(callback.delay.parameters(), at[0], at[batches[1]])


# Lightning advises to save the weights before the step; a checkpoint for a resume has those after it.
@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
@pytest.mark.parametrize("saved", [1, 2, 3], ids=["before", "at", "in the warm-up"])
def test_a_resumed_run_with_two_optimizers_ends_bit_for_bit_alike(tmp_path, saved):
    def fit(module: Manual, folder: Path, checkpoint: str | None) -> Weights:
        callback = DelayedAttention(until=at_step(2), warmup_steps=3)
        trainer_for(folder, callback, every_step(folder), max_steps=10).fit(module, data(), ckpt_path=checkpoint)
        assert callback.delay is not None
        assert (callback.delay.step, callback.delay.switch_step) == (5, 2)  # Lightning counts each optimizer's steps
        return weights(module)

    whole = fit(Manual(), tmp_path, None)
    resumed = fit(Manual(seed=1), tmp_path / "resumed", str(tmp_path / f"step={2 * saved}.ckpt"))
    assert same(resumed, whole)


def test_at_fraction_with_manual_optimization_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"at_fraction 0\.5 needs the number of steps, which Lightning does not know"):
        trainer_for(tmp_path, DelayedAttention(until=at_fraction(0.5))).fit(Manual(), data())
