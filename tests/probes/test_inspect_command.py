"""`latebloom inspect`, in real processes, on every kind of path that it takes."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from commands import latebloom
from families import FAMILIES, build
from safetensors.torch import load_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # pyright: ignore

from latebloom import SequenceModel, hybrid, run
from latebloom.errors import ConfigError
from latebloom.integrations import load_model as loading
from latebloom.integrations.load_model import load_model


def inspect(*words: str | Path, check: int = 0) -> str:
    ran = latebloom("inspect", *words)
    assert ran.returncode == check, ran.stdout + ran.stderr
    if check:
        assert ran.stdout == ""
        assert ran.stderr.startswith("latebloom: ")
        assert ran.stderr.count("\n") == 1
        return ran.stderr
    assert ran.stderr == ""
    return ran.stdout


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("olmo")
    build("olmo_hybrid").save_pretrained(folder)
    return folder


def test_a_checkpoint_folder(checkpoint):
    said = inspect(checkpoint)
    for words in (
        "OlmoHybridForCausalLM", "model.layers.{0,2}.linear_attn", "model.layers.{1,3}.self_attn", "2 x 3,120",
        "gated behind post_attention_layernorm", f"Weights: those in {checkpoint}.", "recurrence 11,552 (28.4%)",
        "would delay 4 parts with 6,304 parameters", "With attention disabled, a token influences the outputs up to",
    ):  # fmt: skip
        assert words in said


def test_a_configuration_alone_has_random_weights(checkpoint):
    said = inspect(checkpoint / "config.json", "--no-horizon")
    assert "Weights: random" in said
    assert "a token influences" not in said


def test_a_model_that_is_refused_is_described(tmp_path):
    build("llama").config.save_pretrained(tmp_path)
    said = inspect(tmp_path)
    assert "refuses this model: everything that mixes tokens in LlamaForCausalLM is attention" in said
    assert "a token influences the outputs at no later position" in said


def test_bad_paths_are_one_sentence(tmp_path):
    assert "there is no" in inspect(tmp_path / "nowhere", check=2)
    (tmp_path / "config.json").write_text('{"model_type": "bambo"}')
    said = inspect(tmp_path, check=2)
    assert "model_type: 'bambo' is not known; did you mean 'bamba'?" in said
    assert f"this Transformers has {len(CONFIG_MAPPING_NAMES)}" in said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not json", "cannot be read as JSON"),
        ("[1]", "it holds no settings by name"),
        ('{"a": 1}', "neither model_type, as Transformers writes, nor library: latebloom"),
        ('{"model_type": "bamba", "hidden_size": "wide"}', "Transformers cannot build a bamba"),
        ('{"library": "latebloom"}', "vocabulary_size: None is not a number of tokens"),
        ('{"library": "latebloom", "vocabulary_size": 5, "model": {"widht": 3}}', "did you mean width?"),
        ('{"task": {}, "model": {}}', "task"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, reason):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_model(file)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_without_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config\.json in it"):
        load_model(tmp_path)


def test_the_packages_own_models(tmp_path):
    SequenceModel(hybrid(width=8, blocks=1, heads=2), 11).save_pretrained(tmp_path)
    assert load_model(tmp_path)[1] == f"those in {tmp_path}"
    model, weights = load_model(tmp_path / "config.json")
    assert isinstance(model, SequenceModel)
    assert weights.startswith("random")


@pytest.fixture
def unfinished(tiny, tmp_path) -> Path:
    """A run that was stopped before its end; its last step is 24, and its newest checkpoint."""
    run(tiny, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "model")
    return tmp_path / "run"


def weights_at(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def test_a_finished_run(tiny, tmp_path):
    run(tiny, tmp_path)
    assert load_model(tmp_path)[1] == f"those in {tmp_path / 'model'}"


def test_an_unfinished_run_is_looked_at_in_its_newest_checkpoint(unfinished):
    model, weights = load_model(unfinished)
    newest = unfinished / "checkpoints" / "step-00000024"
    assert weights == f"those in {newest}, of step 24 of 24, the newest checkpoint; the run has no finished model"
    wanted = weights_at(unfinished, 24)
    assert all(value.equal(wanted[name]) for name, value in model.state_dict().items())
    assert f"Weights: {weights}." in inspect(unfinished, "--no-horizon")


def test_a_checkpoint_and_a_folder_of_checkpoints(unfinished):
    older = unfinished / "checkpoints" / "step-00000020"
    model, weights = load_model(older)
    assert weights == f"those in {older}, of step 20 of 24"
    wanted, newest = weights_at(unfinished, 20), weights_at(unfinished, 24)
    assert all(value.equal(wanted[name]) for name, value in model.state_dict().items())
    assert not all(value.equal(newest[name]) for name, value in model.state_dict().items())
    newest_folder = unfinished / "checkpoints" / "step-00000024"
    assert load_model(unfinished / "checkpoints")[1] == f"those in {newest_folder}, of step 24 of 24"


def test_a_run_without_checkpoints_has_random_weights(unfinished):
    shutil.rmtree(unfinished / "checkpoints")
    model, weights = load_model(unfinished)
    assert isinstance(model, SequenceModel)
    assert weights.startswith("random")


def test_a_checkpoint_outside_its_run_is_refused(unfinished, tmp_path):
    shutil.move(unfinished / "checkpoints" / "step-00000020", tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"mine is a checkpoint outside the folder of its run, so its config\.json"):
        load_model(tmp_path / "mine")


def test_saved_weights_are_the_ones_that_are_loaded(checkpoint):
    wanted, found = build("olmo_hybrid").state_dict(), load_model(checkpoint)[0].state_dict()
    assert all(wanted[name].equal(found[name]) for name in wanted)


def test_a_large_model_is_looked_at_without_its_weights(checkpoint, monkeypatch):
    monkeypatch.setattr(loading, "LARGEST", 1000)
    model, weights = load_model(checkpoint)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert "with 40,608 parameters the model is inspected without them" in weights


def test_without_transformers_it_says_so(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="the package transformers is not installed"):
        load_model(checkpoint)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_read_back_from_its_configuration(family, tmp_path):
    model = build(family)
    model.config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == family
    assert type(load_model(tmp_path)[0]) is type(model)
