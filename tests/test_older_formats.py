"""Hashes and files of earlier versions: a new field changes no hash, and old configurations are the same runs."""

import json
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path

import polars as pl
import pytest
import torch

import latebloom.config
from latebloom import Composite, RunConfig, SequenceModel, hybrid, recipe
from latebloom.components import Component
from latebloom.config import _changed, config_from, short_hash, with_overrides
from latebloom.layers.attention import Learned, LogN, Rotary, Softmax
from latebloom.layers.ssm.mamba3 import Mamba3
from latebloom.recipes import Recipe

RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.parquet")), ids=lambda file: file.stem)
def test_the_hashes_of_all_results_are_recognised_from_their_configurations(file):
    rows = pl.read_parquet(file, columns=["config", "config_hash"]).unique()
    assert len(rows)
    for text, older in rows.iter_rows():
        config = config_from(json.loads(text))
        assert config.matches(older)
        assert not replace(config, seed=config.seed + 1).matches(older)
        assert config_from(json.loads(json.dumps(config.to_json()))) == config


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 4


class Kind(Component):
    """A family for these tests."""


@dataclass(frozen=True, kw_only=True)
class Member(Kind):
    name: str = "member"
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int = 10
    inner: Inner = field(default_factory=Inner)
    kind: Kind = field(default_factory=Member)


def test_a_new_field_with_a_default_changes_no_hash():
    grown_inner = make_dataclass("Inner", [("depth", int, 3)], bases=(Inner,), frozen=True, kw_only=True)
    grown_member = make_dataclass("Member", [("extra", float, 0.5)], bases=(Member,), frozen=True, kw_only=True)
    new = [("more", str, "x"), ("also", Inner, field(default_factory=Inner))]
    changed = [("inner", Inner, field(default_factory=grown_inner))]
    grown = make_dataclass("Outer", [*new, *changed], bases=(Outer,), frozen=True, kw_only=True)
    pairs = [
        (Outer(), grown()),
        (Outer(steps=3), grown(steps=3)),
        (Outer(inner=Inner(width=5)), grown(inner=grown_inner(width=5))),
        (Outer(kind=Member(size=2)), grown(kind=grown_member(size=2))),
    ]
    for before, after in pairs:
        assert short_hash(_changed(before)) == short_hash(_changed(after))
    assert len({short_hash(_changed(before)) for before, _ in pairs}) == 4
    assert short_hash(_changed(grown(more="y"))) != short_hash(_changed(Outer()))


def test_a_default_that_was_changed_changes_no_hash_of_runs_from_before():
    """The hash below is of a run that a version with the earlier default wrote; its config.json names the value."""
    before = RunConfig(task=Composite(), model=hybrid(recurrence=Mamba3(step_range=(0.5, 1.0))))
    assert before.hash == "a2a98acfe6c1"
    assert config_from(before.to_json()).hash == before.hash
    assert RunConfig(task=Composite(), model=hybrid(recurrence=Mamba3())).hash != before.hash


def test_a_component_is_in_the_hash_by_its_name():
    assert _changed(hybrid(positions="learned"))["attention"] == {"positions": {"name": "learned"}}
    assert _changed(hybrid(scores="log_n"))["attention"] == {"scores": {"name": "log_n"}}


def test_every_field_is_in_the_hash_but_the_imports():
    config = RunConfig()
    assert [one.name for one in fields(config) if not one.compare] == ["imports"]
    assert replace(config, imports=("somewhere",)).hash == config.hash


NEWER_TRAINING = (
    "slow_attention",
    "drop_path",
    "detach_attention",
    "project_gradients",
    "bypass_loss",
    "curriculum",
    "state_passing",
    "watch",
    "probe_every",
)
"""Settings of training that version 0.1 did not have."""
OLD_ATTENTION = {
    "heads": 4,
    "positions": "none",
    "context": 1024,
    "look_back": False,
    "sharpen": False,
    "zero_output": False,
}


@pytest.mark.parametrize(
    ("older", "positions", "scores"),
    [
        ({}, "none", Softmax()),
        ({"sharpen": True}, "none", LogN()),
        ({"positions": "rotary", "sharpen": True}, "rotary", LogN()),
        ({"positions": "rotary", "context": 512}, "rotary", Softmax()),
        ({"positions": "learned", "context": 512}, "learned", Softmax()),
    ],
)
def test_attention_of_version_0_1_is_read_as_components(older, positions, scores):
    data = {"model": {"recurrence": "lstm", "attention": OLD_ATTENTION | older}}
    config = config_from(data)
    assert config.model.attention.positions.name == positions
    assert config.model.attention.scores == scores
    assert config.model.recurrence.name == "lstm"
    if positions == "learned":
        assert config.model.attention.positions == Learned(context=512)
    full = json.loads(json.dumps(RunConfig().to_json()))
    full["model"] |= {"recurrence": "lstm", "attention": OLD_ATTENTION | older}
    del full["task"]["key_tokens"]
    for name in NEWER_TRAINING:
        del full["training"][name]
    # A context that had no effect is the one setting that is not kept.
    assert config.matches(short_hash(full)) == (older.get("context", 1024) == 1024 or positions == "learned")


def test_what_older_versions_could_not_say_has_no_older_hash():
    for change in ("model.attention.positions.base=500", "training.state_noise=0.3"):
        config = with_overrides(RunConfig(), ["model.attention.positions=rotary", change])
        assert len(config.hashes) == (1 if "base" in change else 2)


def test_a_field_of_old_is_refused_beside_those_of_today():
    with pytest.raises(latebloom.config.ConfigError, match=r"model.attention.sharpen: there is no such field"):
        with_overrides(RunConfig(), ["model.attention.sharpen=true"])


@pytest.mark.parametrize("name", Recipe.members)
def test_every_recipe_has_the_hash_that_version_0_1_gave_it(name):
    config = recipe(name)
    assert len(config.hashes) >= 2
    assert len(set(config.hashes)) == len(config.hashes)


def test_a_model_that_version_0_1_saved_is_the_same_model(tmp_path):
    torch.manual_seed(0)
    model = SequenceModel(hybrid(width=16, blocks=1, positions=Rotary(), scores="log_n"), 12)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"] |= {"recurrence": "lstm", "attention": OLD_ATTENTION | {"positions": "rotary", "sharpen": True}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = SequenceModel.from_pretrained(tmp_path)
    tokens = torch.randint(12, (2, 7))
    assert again.settings == model.settings
    assert torch.equal(again(tokens), model(tokens))
