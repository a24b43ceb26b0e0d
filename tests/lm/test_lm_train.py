"""Training: a run that was killed ends bit for bit as one that was not, the delay holds, and bad input is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_lm import small_model, small_training

from latebloom.delay.triggers import AtFraction, AtStep, WhenBeyond, WhenPlateau
from latebloom.errors import ConfigError, NonFiniteLossError
from latebloom.lm.checkpoints import newest_checkpoint
from latebloom.lm.corpus import Corpus
from latebloom.lm.sizes import SIZES, build_model, read_model_config
from latebloom.lm.train import HeldOutLoss, train
from latebloom.lm.until import read_trigger

pytestmark = pytest.mark.filterwarnings("ignore:delay. Trainer left .* weights as they were")

LATEBLOOM = [sys.executable, "-m", "latebloom", "lm", "train"]
FIELDS = [f"{name}={json.dumps(value)}" for name, value in small_model().items() if name != "model_type"]
WORDS = ["--model", "olmo_hybrid", "--context", "32", "--batch", "2", "--steps", "10", "--learning-rate", "0.003"]
WORDS += ["--log-every", "2", "--save-every", "2", "--until", "50%", *FIELDS]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_a_run_that_was_killed_before_and_after_the_switch_ends_bit_for_bit_alike(corpus, tmp_path):
    for step in (2, 6):
        command = [*LATEBLOOM, "--data", str(corpus.folder), "--out", str(tmp_path / "killed"), *WORDS]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (tmp_path / "killed" / "checkpoints" / f"checkpoint-{step}").exists():
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)  # most likely while the checkpoint is written
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "killed" / "result.json").exists()
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    train(small_training(corpus, until="50%", save_every=2), tmp_path / "whole")
    assert "Attention was enabled at step 5: 0.5 of 10 steps were done." in ended.stdout
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    for file in ("metrics.jsonl", "model/config.json"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_attention_is_held_back_until_the_switch_and_trained_after_it(corpus, tmp_path):
    settings = small_training(corpus, until="5", save_every=1)
    start, _ = build_model(settings.model, settings.seed, corpus.vocabulary, 32)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    result = train(settings, tmp_path / "run")
    assert (result["switch_step"], result["steps"], result["tokens"]) == (5, 10, 640)
    after = weights(tmp_path / "run")
    held = [name for name in after if "self_attn" in name]
    assert held
    assert not any(torch.equal(before[name], after[name]) for name in held if "proj" in name)
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(one["step"], one["attention_held"]) for one in log] == [(1, 1), (2, 1), (4, 1), (6, 0), (8, 0), (10, 0)]
    assert (
        "torch; fla is not used"
        in json.loads((tmp_path / "run" / "environment.json").read_text())["kernels"]["recurrence"]
    )
    assert train(settings, tmp_path / "run") == result  # a finished run is read
    (tmp_path / "run" / "result.json").unlink()  # killed before it was written
    again = train(settings, tmp_path / "run")
    changed = {"seconds": 0, "cpu_seconds": 0, "resumed_at": 10, "digest": ""}
    assert again | changed == result | changed
    assert again["resumed_at"] == 10
    with pytest.raises(ConfigError, match=r"was trained with other settings \(steps: 10 -> 12\); give a new folder"):
        train(small_training(corpus, until="5", save_every=1, steps=12), tmp_path / "run")


def test_joint_training_differs_by_the_delay_only(corpus, tmp_path):
    joint = train(small_training(corpus), tmp_path / "joint")
    assert joint["switch_step"] is None
    first = json.loads((tmp_path / "joint" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["attention_gate"] == 1.0


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_models_that_are_no_hybrids_train_jointly_and_cannot_be_delayed(corpus, tmp_path, kind):
    sizes = {"vocab_size": 320, "hidden_size": 16, "num_hidden_layers": 2, "eos_token_id": 0, "bos_token_id": 0}
    sizes |= {"pad_token_id": 0}
    if kind == "llama":
        sizes |= {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
        why = "everything that mixes tokens in LlamaForCausalLM is attention"
    else:
        sizes |= {"num_heads": 2, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16}
        why = "no softmax attention was found in Mamba2ForCausalLM"
    settings = replace(small_training(corpus, steps=4), model={"model_type": kind, **sizes})
    with pytest.raises(ConfigError, match=why) as error:
        train(replace(settings, until="2"), tmp_path / "delayed")
    assert str(error.value).endswith("; a delay needs a hybrid of attention and a recurrence")  # and names no `where`
    assert not (tmp_path / "delayed").exists()
    assert train(settings, tmp_path / "joint")["steps"] == 4


def test_a_hybrid_that_cannot_be_bypassed_is_refused_with_the_advice_of_its_own(corpus, tmp_path, monkeypatch):
    def check(found, allow):
        raise ConfigError('a block has no residual path; use hold="freeze"')

    monkeypatch.setattr("latebloom.delay.find.Found.check", check)
    with pytest.raises(ConfigError, match=r'has no residual path; use hold="freeze"$'):
        train(small_training(corpus, steps=4, until="2"), tmp_path / "run")


def test_triggers_as_a_user_writes_them():
    assert read_trigger("10%", 50, 5) == AtFraction(fraction=0.1)
    assert read_trigger("500", 50, 5) == AtStep(step=500)
    assert read_trigger("plateau", 50, 5) == WhenPlateau(latest=50)
    assert read_trigger("plateau@4x", 50, 5) == WhenPlateau(latest=50, metric="held_out_loss_4x")
    assert read_trigger("loss<3.2@4x", 50, 5) == WhenBeyond(threshold=exp(-3.2), multiple=4.0, latest=50, every=5)
    with pytest.raises(ConfigError, match="until: 'soon' is not known; write 10%, a step such as 500"):
        read_trigger("soon", 50, 5)


@pytest.mark.parametrize(
    ("until", "step", "reason"),
    [("loss<9@2x", 4, "state tracking at 2x was at"), ("plateau@2x", 7, "the latest step 7 was reached before")],
)
def test_triggers_on_held_out_loss_at_a_longer_context(corpus, tmp_path, until, step, reason):
    result = train(small_training(corpus, until=until, latest=7), tmp_path / "run")
    assert result["switch_step"] == step
    assert result["switch_reason"].startswith(reason)
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ("held_out_loss_2x" in {name for entry in log for name in entry}) == until.startswith("plateau")


def test_held_out_loss_is_that_of_the_validation_split(corpus):
    model, _ = build_model(small_model(), 0, corpus.vocabulary, 32)
    measure = HeldOutLoss(model, corpus, 32)
    assert measure(2) == pytest.approx(5.77, abs=0.1)  # near log 320: the weights are random
    assert measure.probability(2) == pytest.approx(exp(-measure(2)))


def test_named_sizes_have_the_parameters_that_they_name():
    for name, vocabulary, wanted in (("tiny", 1024, 0.5e6), ("small", 4096, 17e6), ("base", 32_000, 125e6)):
        with torch.device("meta"):
            model, _ = build_model(read_model_config(name, [], vocabulary, 0), 0, vocabulary, 64)
        count = sum(one.numel() for one in model.parameters())
        assert count == pytest.approx(wanted, rel=0.03), (name, count)
        assert f"{wanted / 1e6:g}M" in SIZES[name].about


def test_a_configuration_may_be_a_file_json_or_a_type_with_overrides(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_model()))
    for model in (str(tmp_path), str(tmp_path / "config.json"), json.dumps(small_model())):
        config = read_model_config(model, ["hidden_size=32"], 300, 7)
        assert (config["hidden_size"], config["vocab_size"], config["eos_token_id"]) == (32, 320, 7)
    assert read_model_config("qwen3_next", [], 300, 7)["vocab_size"] == 320


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("tinyy", [], "model: 'tinyy' is not known; did you mean 'tiny'?"),
        ("tiny", ["hidden_size"], "model: 'hidden_size' is not FIELD=VALUE"),
        (
            "tiny",
            ["vocab_size=100"],
            "tokenizer: it has 309 tokens and the model 100; prepare the corpus with a tokenizer",
        ),
        ("tiny", ["hidden_size=wide"], "model: Transformers cannot build a olmo_hybrid"),
        (
            "gpt2",
            ["n_positions=16", "n_embd=16", "n_head=2"],
            "context: 32 is more than the 16 positions of GPT2LMHeadModel",
        ),
        ("tiny", ['layer_types=["full_attention"]', "num_hidden_layers=1"], "at least one 'linear_attention' layer"),
        ("t5", [], "model: Transformers has no causal language model of the type t5"),
        ("{", [], "model cannot be read as JSON"),
        ("nowhere.json", [], "model: there is no nowhere.json"),
    ],
)
def test_bad_models_are_refused_in_one_sentence(corpus: Corpus, model, overrides, message):
    def build() -> None:
        config = read_model_config(model, overrides, corpus.vocabulary, corpus.end_token)
        build_model(config, 0, corpus.vocabulary, 32)

    with pytest.raises(ConfigError) as error:
        build()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_context_that_is_longer_than_the_text_leaves_no_folder(corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"context: 100000 tokens are more than the [0-9,]+ of the training split"):
        train(small_training(corpus, context=100_000), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("log_every", [2, 20])
def test_a_loss_that_is_not_finite_ends_the_run_without_a_result(corpus, tmp_path, log_every):
    settings = small_training(corpus, learning_rate=1e30, log_every=log_every)
    for _ in range(2):  # a repeated command does not finish it either
        with pytest.raises(NonFiniteLossError, match="use a smaller --learning-rate and a new folder"):
            train(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()


def test_joint_training_that_was_interrupted_ends_bit_for_bit_alike(corpus, tmp_path):
    whole, again = (train(small_training(corpus), tmp_path / name) for name in ("whole", "again"))
    for name in ("result.json", "metrics.jsonl"):
        (tmp_path / "again" / name).unlink()
    shutil.rmtree(tmp_path / "again" / "model")
    newest = newest_checkpoint(tmp_path / "again" / "checkpoints")
    assert newest is not None
    shutil.rmtree(newest)
    again = train(small_training(corpus), tmp_path / "again")
    assert (whole["resumed_at"], again["resumed_at"]) == (0, 8)  # every fourth step is saved
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "again")
    assert all(torch.equal(one[name], other[name]) for name in one)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "again")]
    assert metrics[0] == metrics[1]


def test_mixed_precision_and_live_curves(corpus, tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    for name in ("one", "two"):
        result = train(small_training(corpus, until="50%", bf16=True), tmp_path / name, track="tensorboard")
        assert result["switch_step"] == 5
        assert list((tmp_path / name / "tensorboard").rglob("events.out.tfevents.*"))
        assert {one.dtype for one in weights(tmp_path / name).values()} == {torch.float32}


def test_incomplete_checkpoints_are_not_resumed(tmp_path):
    for step, state in ((2, "{}"), (4, '{"half'), (6, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-2"
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint-2"]
