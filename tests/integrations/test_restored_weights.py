"""A run that Trainer resumes ends bit for bit as one that was not interrupted, also where Trainer restores a part."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, build
from switching import same, weights
from test_transformers import trainer_for
from transformers import JambaForCausalLM, Trainer

from latebloom.delay import at_step
from latebloom.errors import ConfigError
from latebloom.integrations.transformers import DelayedAttentionCallback

CONVERTED = {
    "jamba": "experts",
    "qwen3_next": "experts",
    "olmo_hybrid": "norm",
    "nemotron_h": "embeddings",
    "granitemoehybrid": "experts",
    "minimax": "mlp",
}
"""Families whose checkpoints have other names than the model, with a word of one that Trainer does not restore."""


def whole_run(family: str, folder: Path, **arguments: Any) -> Trainer:
    trainer = trainer_for(
        folder,
        DelayedAttentionCallback(until=at_step(2)),
        model=build(family),
        save_strategy="steps",
        save_steps=1,
        **arguments,
    )
    trainer.train()
    return trainer


def resumed_run(model: Any, checkpoint: Path, output: Path) -> Trainer:
    trainer = trainer_for(output, DelayedAttentionCallback(until=at_step(2)), model=model)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


@pytest.mark.parametrize("family", CONVERTED)
def test_weights_that_trainer_leaves_out_are_restored(tmp_path, family):
    whole = whole_run(family, tmp_path)
    with pytest.warns(UserWarning, match=rf"Trainer left \d+ weights as they were .*{CONVERTED[family]}"):
        resumed = resumed_run(build(family, seed=1), tmp_path / "checkpoint-1", tmp_path)
    assert same(weights(resumed.model), weights(whole.model))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - CONVERTED))
def test_nothing_is_said_where_trainer_restores_all(tmp_path, family, recwarn):
    whole = whole_run(family, tmp_path)
    resumed = resumed_run(build(family, seed=1), tmp_path / "checkpoint-1", tmp_path)
    assert same(weights(resumed.model), weights(whole.model))
    assert not [warning for warning in recwarn if "delay" in str(warning.message)]


def test_a_checkpoint_that_is_not_found_is_refused_and_the_stated_way_out_works(tmp_path):
    whole = whole_run("jamba", tmp_path)
    shutil.copytree(tmp_path / "checkpoint-1", tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"weights differ .*JambaForCausalLM\.from_pretrained\(checkpoint\)"):
        resumed_run(build("jamba", seed=1), tmp_path / "moved", tmp_path / "new")
    model = JambaForCausalLM.from_pretrained(tmp_path / "moved")
    assert same(weights(resumed_run(model, tmp_path / "moved", tmp_path / "new").model), weights(whole.model))


def test_a_checkpoint_of_another_run_in_the_output_folder_is_refused(tmp_path):
    whole_run("jamba", tmp_path / "one")
    whole_run("jamba", tmp_path / "other", learning_rate=1e-3)
    with pytest.raises(ConfigError, match="does not hold them"):
        resumed_run(build("jamba", seed=1), tmp_path / "one" / "checkpoint-1", tmp_path / "other")


def test_the_best_model_is_restored_whole(tmp_path):
    arguments: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    trainer = trainer_for(
        tmp_path,
        DelayedAttentionCallback(until=at_step(1)),
        model=build("jamba"),
        save_strategy="steps",
        save_steps=1,
        metric_for_best_model="score",
        greater_is_better=True,
        **arguments,
    )
    trainer.compute_metrics = lambda prediction: {"score": trainer.state.global_step == 2}
    with pytest.warns(UserWarning, match="Trainer left"):
        trainer.train()
    assert same(weights(trainer.model), weights(JambaForCausalLM.from_pretrained(tmp_path / "checkpoint-2")))
