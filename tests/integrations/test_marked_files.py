"""Files that the trainers write during a delay are marked, and resuming from them says nothing."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from accelerate.utils import load_checkpoint_in_model
from families import build
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from safetensors.torch import load_file
from switching import LENGTH, same, weights
from test_accelerate import Loop
from test_accelerate import _fresh_accelerate as _fresh_accelerate
from test_lightning import Hybrid, data, every_step
from test_lightning import pytestmark as pytestmark
from test_lightning import trainer_for as lightning_trainer
from test_transformers import trainer_for

from latebloom import at_step, bypass_attention
from latebloom.delay import DelayedAttention as Delay
from latebloom.integrations.lightning import DelayedAttention
from latebloom.integrations.load_model import load_model
from latebloom.integrations.transformers import DelayedAttentionCallback

WARNING = "these weights were trained without attention.*call latebloom.bypass_attention on the model"
TOKENS = torch.arange(3, 3 + 2 * LENGTH).view(2, LENGTH)


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What Transformers logs as a warning or worse."""
    seen: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: seen.append(record.getMessage())
    logger, verbosity = logging.getLogger("transformers"), transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(handler)
    yield seen
    logger.removeHandler(handler)
    transformers.logging.set_verbosity(verbosity)


def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS, use_cache=False).logits


def delayed(family: str = "bamba") -> tuple[Any, Any, Delay]:
    model = build(family)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, Delay(model, optimizer, until=at_step(2))


def train(model: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        model.train()(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("family", "options"),
    [("bamba", {}), ("bamba", {"max_shard_size": "20KB"}), ("olmo_hybrid", {}), ("qwen3_next", {})],
    ids=["bamba", "sharded", "olmo_hybrid", "qwen3_next"],
)
def test_from_pretrained_reports_weights_of_the_delay(tmp_path, log, family, options):
    """Transformers itself does, as of an unexpected entry, so a process without this package sees it too."""
    model, optimizer, _ = delayed(family)
    train(model, optimizer, 1)
    model.save_pretrained(tmp_path, **options)
    loaded = type(model).from_pretrained(tmp_path)
    assert [line for line in log if "these weights were trained without attention" in line]
    assert not torch.equal(logits(loaded), logits(model))
    bypass_attention(loaded)
    assert torch.equal(logits(loaded), logits(model))
    log.clear()
    train(model, optimizer, 2)
    model.save_pretrained(tmp_path, **options)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path)), logits(model))
    assert log == []


def test_given_weights_another_precision_and_the_model_inside_are_marked_too(tmp_path, log):
    model, _, _ = delayed()
    model.save_pretrained(tmp_path / "given", state_dict=dict(model.state_dict()))
    model.half().save_pretrained(tmp_path / "half")
    model.model.save_pretrained(tmp_path / "inside")
    for folder in ("given", "half", "inside"):
        transformers.AutoModel.from_pretrained(tmp_path / folder)
        assert "these weights were trained without attention" in log.pop()


def test_inspect_says_it_of_a_folder(tmp_path, log):
    model, _, _ = delayed()
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path)[1] == f"those in {tmp_path}, which were trained without attention"


def test_a_removed_delay_leaves_the_method_of_the_class():
    model, _, delay = delayed()
    assert "save_pretrained" in vars(model)
    delay.remove()
    assert "save_pretrained" not in vars(model)


class Plain(torch.nn.Module):
    """A model of torch's own in Trainer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.recurrence = torch.nn.Embedding(64, 16), torch.nn.GRU(16, 16, batch_first=True)
        self.attention, self.logits = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.nn.Linear(16, 64)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.embedding(input_ids)
        x = x + self.recurrence(x)[0]
        logits = self.logits(x + self.attention(x, x, x, need_weights=False)[0])
        loss = torch.nn.functional.cross_entropy(logits.mT, input_ids if labels is None else labels)
        return {"loss": loss, "logits": logits}


def test_checkpoints_of_a_model_without_save_pretrained_are_marked_too(tmp_path, log):
    arguments: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    whole = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), model=Plain(), **arguments)
    whole.train()
    resumed = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), model=Plain(1), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert same(weights(resumed.model), weights(whole.model))
    assert log == []
    with pytest.warns(UserWarning, match=WARNING):
        Plain().load_state_dict(load_file(tmp_path / "checkpoint-1" / "model.safetensors"))
    Plain().load_state_dict(load_file(tmp_path / "checkpoint-2" / "model.safetensors"))


@pytest.mark.parametrize("family", ["bamba", "jamba"])
@pytest.mark.filterwarnings("ignore:delay. Trainer left .* weights as they were")
def test_checkpoints_of_trainer_are_marked_and_its_resume_says_nothing_of_it(tmp_path, log, family):
    arguments: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    whole = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), model=build(family), **arguments)
    whole.train()
    log.clear()
    resumed = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), model=build(family, 1), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert not [line for line in log if "latebloom" in line]
    assert torch.equal(logits(resumed.model), logits(whole.model))
    for step, marked in ((1, True), (2, False)):
        log.clear()
        type(build(family)).from_pretrained(tmp_path / f"checkpoint-{step}")
        assert any("these weights were trained without attention" in line for line in log) == marked


def test_checkpoints_of_lightning_warn_outside_a_trainer(tmp_path):
    callback = DelayedAttention(until=at_step(2))
    lightning_trainer(tmp_path, callback, every_step(tmp_path)).fit(Hybrid(), data())
    for step in (2, 3):
        Hybrid.load_from_checkpoint(tmp_path / f"step={step}.ckpt")
    with pytest.warns(UserWarning, match=WARNING):
        loaded = Hybrid.load_from_checkpoint(tmp_path / "step=1.ckpt")
    plain = build("bamba")
    plain.load_state_dict(dict(loaded.model.state_dict()))
    enabled = logits(plain)
    bypass_attention(plain)
    bypass_attention(loaded)
    assert torch.equal(logits(loaded.model), logits(plain))
    assert not torch.equal(logits(loaded.model), enabled)


class Average(WeightAveraging):
    """The mean of all steps."""


class Validated(Hybrid):
    """Keeps its weights and what it gives whenever it is validated."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[dict[str, torch.Tensor], torch.Tensor]] = []

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        now = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        self.seen.append((now, logits(self.model)))


@pytest.mark.parametrize("averaging", [lambda: EMAWeightAveraging(decay=0.5), Average], ids=["EMA", "mean"])
@pytest.mark.parametrize("order", [1, -1], ids=["delay first", "average first"])
def test_averages_of_lightning_are_run_and_saved_as_plain_models_with_their_weights(tmp_path, averaging, order):
    callbacks = [DelayedAttention(until=at_step(2)), averaging()][::order]
    module, saved = Validated(), every_step(tmp_path)
    settings: dict[str, Any] = {"val_check_interval": 1, "check_val_every_n_epoch": None, "num_sanity_val_steps": 0}
    lightning_trainer(tmp_path, *callbacks, saved, **settings).fit(module, data(), data(2))
    assert len(module.seen) == 4
    for step, (average, given) in enumerate(module.seen, start=1):
        plain = build("bamba")
        plain.load_state_dict(average)
        if step < 2:
            bypass_attention(plain)
        assert torch.equal(given, logits(plain))
    last = dict(module.model.state_dict())
    assert all(torch.equal(weight, last[name]) for name, weight in module.seen[-1][0].items())
    with pytest.warns(UserWarning, match=WARNING):
        averaged = Hybrid.load_from_checkpoint(tmp_path / "step=1.ckpt")
    assert all(torch.equal(weight, module.seen[0][0][name]) for name, weight in averaged.model.state_dict().items())
    Hybrid.load_from_checkpoint(tmp_path / "step=3.ckpt")
    again, resumed = [DelayedAttention(until=at_step(2)), averaging()][::order], Validated()
    lightning_trainer(tmp_path / "resumed", *again, every_step(tmp_path / "resumed"), **settings).fit(
        resumed, data(), data(2), ckpt_path=tmp_path / "step=1.ckpt", weights_only=True
    )
    assert all(torch.equal(weight, last[name]) for name, weight in resumed.model.state_dict().items())


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
def test_checkpoints_of_accelerate_warn_without_a_delay_and_resume_silently_with_one(tmp_path, safe):
    loop = Loop(until=at_step(2)).train(1)
    loop.accelerator.save_state(str(tmp_path), safe_serialization=safe)
    resumed = Loop(seed=1, until=at_step(2))
    resumed.accelerator.load_state(str(tmp_path))
    assert torch.equal(logits(resumed.model), logits(loop.model))
    alone = Loop(seed=1, delayed=False)
    with pytest.warns(UserWarning, match=WARNING):
        alone.accelerator.load_state(str(tmp_path))
    bypass_attention(alone.model)
    assert torch.equal(logits(alone.model), logits(loop.model))


def test_save_model_of_accelerate_marks_its_files(tmp_path):
    loop = Loop(until=at_step(2)).train(1)
    loop.accelerator.save_model(loop.model, tmp_path)
    with pytest.warns(UserWarning, match=WARNING):
        load_checkpoint_in_model(build("bamba"), str(tmp_path))
    loop.train(2)
    loop.accelerator.save_model(loop.model, tmp_path)
    loaded = build("bamba", 1)
    load_checkpoint_in_model(loaded, str(tmp_path))
    assert torch.equal(logits(loaded), logits(loop.model))
