"""LoRA with PEFT: adapters on attention are held back and released, and what is impossible is refused."""

from typing import Any

import pytest
import torch
from families import build
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from switching import LENGTH, check_switch_after_two_steps, moved, same, weights
from test_transformers import Snapshots, trainer_for
from torch import nn

from latebloom import DelayedAttention, at_step, bypass_attention
from latebloom.errors import ConfigError
from latebloom.integrations.transformers import DelayedAttentionCallback

TOKENS = torch.arange(3, 3 + 2 * LENGTH).view(2, LENGTH)
TARGETS = {
    "bamba": ["q_proj", "v_proj", "o_proj", "in_proj"],
    "olmo_hybrid": ["q_proj", "v_proj", "o_proj"],  # its recurrence has projections of these names too
    "lfm2": ["q_proj", "v_proj", "in_proj"],
}
WARNING = "these weights were trained without attention.*call latebloom.bypass_attention on the model"


def adapted(family: str = "bamba", **settings: Any) -> Any:
    torch.manual_seed(0)
    return get_peft_model(build(family), LoraConfig(**{"r": 2, "target_modules": TARGETS[family]} | settings))


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2, weight_decay=0.5)


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model.train()(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS, use_cache=False).logits


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bamba", {}),
        ("olmo_hybrid", {}),
        ("lfm2", {}),
        ("bamba", {"use_dora": True}),
        ("bamba", {"target_modules": ["in_proj"], "modules_to_save": ["self_attn"]}),
    ],
    ids=["bamba", "olmo_hybrid", "lfm2", "DoRA", "modules_to_save"],
)
@pytest.mark.parametrize("hold", ["bypass", "freeze"])
def test_adapters_on_attention_are_held_back_and_released(family, settings, hold):
    model = adapted(family, **settings)
    optimizer = optimizer_of(model)
    delay = DelayedAttention(model, optimizer, until=at_step(2), hold=hold)
    attention = set(delay.parameters())
    assert attention == {name for name, one in model.named_parameters() if "self_attn" in name and one.requires_grad}
    others = {name for name, one in model.named_parameters() if one.requires_grad} - attention
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    at = [weights(model)]
    for _ in range(5):
        train(model, optimizer, 1)
        at.append(weights(model))
    assert moved(attention, at[0], at[2]) == set()
    assert moved(attention, at[2], at[5]) == attention
    assert moved(others, at[0], at[2]) == others
    assert moved(frozen, at[0], at[5]) == set()
    assert all(int(optimizer.state[one]["step"]) == 3 for one in delay.parameters().values())


class Block(nn.Module):
    """A recurrence and attention of torch's own, with a projection after each."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.mix = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 16)
        self.attention, self.project = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.recurrence(x)[0])
        return x + self.project(self.attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("targets", [["mix", "project"], ["mix", "project", "attention"]], ids=["linear", "attention"])
def test_adapters_of_a_plain_model_of_torch(targets):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(64, 16), Block(), nn.Linear(16, 64))
    model = get_peft_model(plain, LoraConfig(target_modules=targets, modules_to_save=["1.recurrence"]))
    optimizer = optimizer_of(model)
    delay = DelayedAttention(model, optimizer, until=at_step(2))
    attention, at = set(delay.parameters()), [weights(model)]
    assert {name.partition("model.1.")[2].split(".")[0] for name in attention} == {*targets} - {"mix"}
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    for _ in range(5):
        nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        at.append(weights(model))
    assert moved(trained, at[0], at[2]) == trained - attention
    assert moved(trained, at[2], at[5]) == trained


def test_adapters_are_merged_after_the_switch():
    """The oracle is a model with the same weights that no delay has touched."""
    model = adapted()
    optimizer = optimizer_of(model)
    DelayedAttention(model, optimizer, until=at_step(2))
    train(model, optimizer, 1)
    with pytest.raises(ConfigError, match=r"q_proj in BambaAttention would become a Linear.*merge them after"):
        model.merge_and_unload()
    model = adapted()
    optimizer = optimizer_of(model)
    delay = DelayedAttention(model, optimizer, until=at_step(2))
    train(model, optimizer, 4)
    plain = adapted()
    plain.load_state_dict(dict(model.state_dict()))
    assert torch.equal(logits(model), logits(plain))
    merged = model.merge_and_unload()
    assert torch.equal(logits(merged), logits(plain.merge_and_unload()))
    delay.remove()
    assert torch.equal(logits(merged), logits(plain.merge_and_unload()))


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["self_attn"], "target_modules": ["in_proj"]}])
def test_adapters_that_are_saved_during_the_delay_warn_when_they_are_loaded(tmp_path, settings):
    model = adapted(**settings)
    optimizer = optimizer_of(model)
    DelayedAttention(model, optimizer, until=at_step(2))
    train(model, optimizer, 1)
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=WARNING):  # by PEFT, which does not know the field of the configuration
        loaded = PeftModel.from_pretrained(build("bamba"), str(tmp_path))
    assert not torch.equal(logits(loaded), logits(model))
    bypass_attention(loaded)
    assert torch.equal(logits(loaded), logits(model))
    train(model, optimizer, 2)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(PeftModel.from_pretrained(build("bamba"), str(tmp_path))), logits(model))


def test_trainer_holds_releases_and_resumes_adapters(tmp_path):
    arguments: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    seen, callback = Snapshots(), DelayedAttentionCallback(until=at_step(2))
    whole = trainer_for(tmp_path, callback, seen, model=adapted(), **arguments)
    whole.train()
    check_switch_after_two_steps(callback.delay, seen.at)
    for saved in (1, 2, 3):
        resumed = trainer_for(tmp_path, DelayedAttentionCallback(until=at_step(2)), model=adapted(), **arguments)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved}"))
        assert same(weights(resumed.model), weights(whole.model))
    with pytest.warns(UserWarning, match=WARNING):
        PeftModel.from_pretrained(build("bamba"), str(tmp_path / "checkpoint-1"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "only on attention": (
        {"target_modules": ["q_proj"]},
        r"only attention is trained \(.*layers.1.self_attn",
    ),
    "only elsewhere": ({"target_modules": ["in_proj"]}, "requires_grad is off for all .* in target_modules, or train"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_adapters_on_one_side_alone_are_refused(case):
    settings, message = REFUSED[case]
    model = adapted(**settings)
    with pytest.raises(ConfigError, match=message):
        DelayedAttention(model, optimizer_of(model), until=at_step(2))


def test_adapters_elsewhere_can_be_trained_without_attention():
    model = adapted(target_modules=["in_proj"])
    bypass_attention(model)
    optimizer = optimizer_of(model)
    before = logits(model)
    train(model, optimizer, 1)
    assert not torch.equal(logits(model), before)


def test_prompt_tuning_is_refused():
    model = get_peft_model(build("bamba"), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    with pytest.raises(ConfigError, match="requires_grad is off for all of attention's parameters"):
        DelayedAttention(model, optimizer_of(model), until=at_step(2))


def test_adapters_that_are_added_after_the_delay_are_refused_until_the_switch():
    plain = build("bamba")
    optimizer = torch.optim.AdamW(plain.parameters())
    delay = DelayedAttention(plain, optimizer, until=at_step(2), hold="freeze")
    late = "would become a Linear while attention is held back; add adapters before the delay is created"
    with pytest.raises(ConfigError, match=late):
        get_peft_model(plain, LoraConfig(target_modules=["q_proj"]))
    delay.remove()
    model = adapted()
    delay = DelayedAttention(model, optimizer_of(model), until=at_step(2))
    with pytest.raises(ConfigError, match="second in ModuleDict " + late):
        model.add_adapter("second", LoraConfig(target_modules=["q_proj"]))
    delay.remove()
    model.add_adapter("third", LoraConfig(target_modules=["v_proj"]))
    other = adapted()  # another model is none of its business
    assert same(weights(other), weights(adapted()))
