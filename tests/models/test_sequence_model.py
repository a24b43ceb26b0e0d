"""The whole model: the three layouts, answers only where asked, causality, saving and loading."""

import json
from typing import Any

import pytest
import torch

from latebloom import SequenceModel, hybrid, lstm, transformer
from latebloom.errors import CheckpointError, ConfigError
from latebloom.models.settings import Model

KINDS = {"hybrid": hybrid, "lstm": lstm, "transformer": transformer}


def build(kind="hybrid", **settings) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(KINDS[kind](width=16, blocks=2, **settings), 20)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_where_an_answer_is_asked_are_those_of_all_places(kind):
    model, tokens = build(kind), torch.randint(20, (3, 9))
    positions = torch.tensor([[0, 8], [4, 5], [7, 2]])
    everywhere = model(tokens)
    assert everywhere.shape == (3, 9, 20)
    asked = model(tokens, positions)
    torch.testing.assert_close(asked, torch.stack([everywhere[i, positions[i]] for i in range(3)]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_causal(kind):
    model, tokens = build(kind), torch.randint(20, (3, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 20
    torch.testing.assert_close(model(tokens)[:, :6], model(changed)[:, :6])


def test_the_baselines_are_the_hybrid_without_a_part():
    roles = {
        kind: [part.role for part in model.blocks[0]]  # type: ignore[union-attr] (a block is a row of parts)
        for kind, model in ((kind, build(kind)) for kind in KINDS)
    }
    assert roles == {
        "hybrid": ["recurrence", "attention", "MLP"],
        "lstm": ["recurrence", "MLP"],
        "transformer": ["attention", "MLP"],
    }


def test_a_gate_scales_its_part_and_at_zero_leaves_it_out():
    model = build()
    part: Any = next(module for module in model.modules() if getattr(module, "role", "") == "attention")
    x = torch.randn(2, 5, 16)
    branch = part(x) - x
    part.gate = 0.0
    assert part(x) is x
    part.gate = torch.tensor(0.25)
    torch.testing.assert_close(part(x), x + 0.25 * branch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_comes_back_the_same(kind, tmp_path):
    model, tokens = build(kind), torch.randint(20, (3, 9))
    model.save_pretrained(tmp_path / "model")
    again = SequenceModel.from_pretrained(tmp_path / "model")
    assert again.settings == model.settings
    assert torch.equal(again(tokens), model(tokens))
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_a_folder_that_is_no_model_is_refused_in_one_sentence(tmp_path):
    def refusal() -> str:
        with pytest.raises(CheckpointError) as caught:
            SequenceModel.from_pretrained(tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "config.json is missing" in refusal()
    build().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights at all")
    assert "is not a model of this library" in refusal()
    build().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["width"] = 32
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "is not a model of this library" in refusal()


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'widht' is not known; did you mean 'width'\?"):
        hybrid(widht=64)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"layout": "rxm"}, "layout: 'rxm'"),
        ({"layout": ""}, "layout: ''"),
        ({"width": 0}, "width: 0"),
        ({"width": 10}, "attention.heads: 4 does not divide width 10; choices: 1, 2, 5, 10"),
        ({"recurrence": "gruu"}, r"recurrence: 'gruu' is not known; did you mean 'gru'\? choices: "),
    ],
)
def test_settings_that_make_no_model_are_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Model(**settings)


def test_rotary_needs_pairs_of_features():
    with pytest.raises(ConfigError, match="must be even; it is 12 / 4 = 3"):
        transformer(width=12)
