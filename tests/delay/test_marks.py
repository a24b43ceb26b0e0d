"""Weights that were saved during a delay say so: loaded without one they warn, and nothing else changes."""

import copy
import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import LanguageModel, Residual, gru
from safetensors.torch import load_file, load_model, save_file
from test_copies import MODELS, TOKENS, build, train
from torch import nn
from torch.optim.swa_utils import AveragedModel

from latebloom import DelayedAttention, SequenceModel, at_step, bypass_attention, enable_attention
from latebloom.delay import marks
from latebloom.delay.marks import entry_for
from latebloom.errors import ConfigError

WARNING = "these weights were trained without attention.*call latebloom.bypass_attention on the model, or give"


def delayed(name: str = "torch", step: int = 3, **settings: Any) -> tuple[Any, Any, DelayedAttention]:
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, DelayedAttention(model, optimizer, until=at_step(step), **settings)


def on_disk(weights: Any) -> Any:
    """The weights after `torch.save` and `torch.load`."""
    file = io.BytesIO()
    torch.save(weights, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def without_attention(weights: dict[str, Any]) -> nn.Module:
    """The model "torch" as it would be written without its attention block."""
    model = LanguageModel(Residual(gru()))
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


@pytest.mark.parametrize("name", MODELS)
def test_weights_of_the_delay_warn_and_a_bypassed_model_runs_them_as_they_were_trained(name: str) -> None:
    model, optimizer, _ = delayed(name)
    train(model, optimizer, 2)
    weights, fresh = on_disk(model.state_dict()), build(name)
    with pytest.warns(UserWarning, match=WARNING) as caught:
        fresh.load_state_dict(weights)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    enabled = fresh(TOKENS)
    assert not torch.equal(enabled, model(TOKENS))
    bypass_attention(fresh)
    assert torch.equal(fresh(TOKENS), model(TOKENS))
    fresh.load_state_dict(weights)  # it runs as it was trained
    with pytest.warns(UserWarning, match=WARNING):
        build(name).load_state_dict(on_disk(fresh.state_dict()))
    enable_attention(fresh)
    assert torch.equal(fresh(TOKENS), enabled)


def test_the_oracle_has_no_attention_at_all() -> None:
    model, optimizer, _ = delayed()
    train(model, optimizer, 2)
    assert torch.equal(model(TOKENS), without_attention(model.state_dict())(TOKENS))


def test_a_process_without_latebloom_loads_the_weights_as_any_others(tmp_path: Path) -> None:
    model, optimizer, _ = delayed()
    train(model, optimizer, 2)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    script = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
from foreign import *
model = LanguageModel(Residual(gru()), Residual(TorchAttention(), nn.LayerNorm(16)))
print(model.load_state_dict(torch.load({str(tmp_path / "weights.pt")!r}, weights_only=True)))
print("latebloom" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:2] == ["<All keys matched successfully>", "False"]


@pytest.mark.parametrize("steps", [3, 4])
def test_weights_of_after_the_switch_load_without_a_word(steps: int) -> None:
    model, optimizer, delay = delayed()
    train(model, optimizer, steps)
    fresh = build("torch")
    fresh.load_state_dict(on_disk(model.state_dict()))
    assert torch.equal(fresh(TOKENS), model(TOKENS))
    delay.remove()
    assert "latebloom" not in str(model.state_dict()._metadata)


def test_frozen_attention_runs_as_it_was_trained_and_scaled_attention_does_not() -> None:
    model, optimizer, _ = delayed(hold="freeze")
    train(model, optimizer, 2)
    build("torch").load_state_dict(on_disk(model.state_dict()))
    model, optimizer, _ = delayed(hold="ramp", ramp_steps=4, step=1)
    train(model, optimizer, 3)
    with pytest.warns(UserWarning, match=r"attention was scaled by 0\.\d+ when .* give the model a DelayedAttention"):
        build("torch").load_state_dict(on_disk(model.state_dict()))


class Checked(nn.Module):
    """A wrapper that loads in its own way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def load_state_dict(self, *positional: Any, **named: Any) -> Any:
        return super().load_state_dict(*positional, **named)


WRAPPERS: dict[str, Any] = {
    "sequence": nn.Sequential,
    "override": Checked,
    "average": AveragedModel,
    "compiled": lambda model: torch.compile(model, backend="eager"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_mark_is_seen_in_any_wrapping_and_for_a_part_of_a_model(wrapper: str) -> None:
    model, optimizer, _ = delayed()
    train(model, optimizer, 2)
    wrapped, fresh = WRAPPERS[wrapper](model), WRAPPERS[wrapper](build("torch"))
    for options in ({}, {"strict": False}, {"assign": True}):
        with pytest.warns(UserWarning, match=WARNING) as caught:
            fresh.load_state_dict(state_dict=on_disk(wrapped.state_dict()), **options)
        assert len(caught) == 1
    with pytest.warns(UserWarning, match=WARNING):
        build("torch").blocks.load_state_dict(model.blocks.state_dict())  # type: ignore[union-attr]
    build("torch").embedding.load_state_dict(model.embedding.state_dict())  # type: ignore[union-attr]


def test_loading_is_otherwise_torch_s_own() -> None:
    """Errors, results and keyword arguments are the same, and wrapping it again changes nothing."""
    method = nn.Module.load_state_dict
    marks._wrap_loading()
    assert nn.Module.load_state_dict is method
    linear = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r'Missing key.*"bias"'):
        linear.load_state_dict({"weight": torch.zeros(2, 2)})
    with pytest.raises(TypeError, match="dict-like"):
        linear.load_state_dict(3)  # type: ignore[arg-type]
    loaded = nn.Module.load_state_dict(self=linear, state_dict={"weight": torch.zeros(2, 2), "x": 0}, strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["bias"], ["x"])


@pytest.mark.parametrize("saved", [2, 3], ids=["during", "after"])
@pytest.mark.parametrize("order", ["delay first", "weights first"])
@pytest.mark.parametrize("with_state", [True, False], ids=["with its state", "without its state"])
def test_a_resume_warns_if_the_state_of_the_delay_is_not_loaded(saved: int, order: str, with_state: bool) -> None:
    model, optimizer, delay = delayed()
    train(model, optimizer, saved)
    weights, moments, state = on_disk(model.state_dict()), copy.deepcopy(optimizer.state_dict()), delay.state_dict()
    resumed, its_optimizer = build("torch"), None
    if order == "weights first":
        # Nothing says yet that a delay will follow.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed.load_state_dict(weights)
        assert len(caught) == (saved == 2)
    its_optimizer = torch.optim.AdamW(resumed.parameters(), lr=1e-2)
    resumed_delay = DelayedAttention(resumed, its_optimizer, until=at_step(3))
    if order == "delay first":
        resumed.load_state_dict(weights)
    its_optimizer.load_state_dict(moments)
    if not with_state:
        told = f"of step {saved} of a delay, and this delay is at step 0; to continue"
        with pytest.warns(UserWarning, match=told) as found:
            train(resumed, its_optimizer, 1)
        assert Path(found[0].filename).is_relative_to(Path(__file__).parent)  # a line of the user's, not of torch
        train(resumed, its_optimizer, 1)  # it has been said
        return
    resumed_delay.load_state_dict(state)
    train(resumed, its_optimizer, 2)
    train(model, optimizer, 2)
    assert torch.equal(resumed(TOKENS), model(TOKENS))


def test_a_delay_that_waits_for_the_first_batch_may_load_weights_before_it() -> None:
    class Unguessable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = build("torch")

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.model(batch["tokens"])

    model, optimizer, delay = delayed()
    train(model, optimizer, 2)
    resumed = Unguessable()
    waiting = DelayedAttention(resumed, torch.optim.AdamW(resumed.parameters()), until=at_step(3))
    resumed.model.load_state_dict(on_disk(model.state_dict()))
    waiting.load_state_dict(delay.state_dict())
    resumed.eval()
    model.eval()
    assert torch.equal(resumed({"tokens": TOKENS}), model(TOKENS))


def test_a_snapshot_of_the_delay_that_is_restored_after_the_switch_warns() -> None:
    model, optimizer, _ = delayed()
    train(model, optimizer, 2)
    best = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1)
    with pytest.warns(UserWarning, match=WARNING):
        model.load_state_dict(best)


def test_an_average_kept_as_a_dictionary_is_evaluated_as_a_plain_model_with_its_weights() -> None:
    """Bit for bit, on either side of the switch, and training goes on as if it had not been looked at."""
    model, optimizer, _ = delayed()
    twin, its_optimizer, _ = delayed()
    average = {name: weight.clone() for name, weight in model.state_dict().items()}
    for step in range(5):
        train(model, optimizer, 1)
        train(twin, its_optimizer, 1)
        for name, weight in model.state_dict().items():
            average[name].lerp_(weight, 0.5)
        kept = {name: weight.clone() for name, weight in model.state_dict().items()}
        model.load_state_dict(average)
        plain = build("torch")
        plain.load_state_dict(average)
        oracle = without_attention(average) if step < 2 else plain
        assert torch.equal(model(TOKENS), oracle(TOKENS))
        model.load_state_dict(kept)
    assert torch.equal(model(TOKENS), twin(TOKENS))


def test_an_averaged_model_gives_what_a_plain_model_with_its_weights_gives_in_every_step() -> None:
    model, optimizer, _ = delayed()
    average = AveragedModel(model, avg_fn=lambda old, new, count: 0.9 * old + 0.1 * new)
    for step in range(5):
        train(model, optimizer, 1, average)
        weights = dict(average.module.state_dict())
        plain = build("torch")
        plain.load_state_dict(weights)
        oracle = without_attention(weights) if step < 2 else plain
        assert torch.equal(average(TOKENS), oracle(TOKENS))


def test_an_entry_marks_files_that_have_no_metadata(tmp_path: Path) -> None:
    model, optimizer, _ = delayed()
    train(model, optimizer, 2)
    save_file({**model.state_dict(), **entry_for(model)}, tmp_path / "model.safetensors")
    weights = load_file(tmp_path / "model.safetensors")
    assert len(weights) == len(model.state_dict()) + 1
    for load in (build("torch").load_state_dict, lambda _: load_model(build("torch"), tmp_path / "model.safetensors")):
        with pytest.warns(UserWarning, match=WARNING):
            load(weights)
    model.load_state_dict(weights)
    train(model, optimizer, 2)
    assert entry_for(model) == {}


def test_a_model_of_this_package_is_marked_in_its_folder(tmp_path: Path) -> None:
    model, optimizer, _ = delayed("own")
    train(model, optimizer, 2)
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=WARNING) as caught:
        loaded = SequenceModel.from_pretrained(tmp_path)
    assert caught[0].filename == __file__
    bypass_attention(loaded)
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    train(model, optimizer, 2)
    model.save_pretrained(tmp_path)
    assert torch.equal(SequenceModel.from_pretrained(tmp_path)(TOKENS), model(TOKENS))


def test_a_copy_may_be_enabled_by_itself_but_a_model_with_a_delay_may_not() -> None:
    model, _, _ = delayed()
    twin = copy.deepcopy(model)
    during = model(TOKENS)
    enable_attention(twin)
    assert not torch.equal(twin(TOKENS), during)
    assert torch.equal(model(TOKENS), during)
    for change in (enable_attention, bypass_attention):
        with pytest.raises(ConfigError, match="this LanguageModel has a delay, which enables attention"):
            change(model)


def test_what_cannot_be_bypassed_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="no softmax attention was found"):
        bypass_attention(LanguageModel(Residual(gru())))
    with pytest.raises(ConfigError, match="no input for Identity can be guessed; give `example`"):
        bypass_attention(nn.Identity())
