"""The study of language models: its plan, its runs through the machinery of studies, and the report of losses."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_lm import small_model, small_training, write_texts

from latebloom import SequenceModel, hybrid
from latebloom.cli import main
from latebloom.config import config_from
from latebloom.errors import ConfigError
from latebloom.evaluation.accuracy import Count
from latebloom.evaluation.result import Evaluation
from latebloom.integrations.load_model import load_model
from latebloom.lm.language import TEXT, LanguageTest
from latebloom.lm.random_windows import SMALLEST, draw_window, window_mask
from latebloom.lm.sizes import build_model
from latebloom.lm.study import DELTA, MAMBA_ROTARY, SIZES, language
from latebloom.lm.train import train
from latebloom.report.hypotheses import judge
from latebloom.report.losses import loss_change
from latebloom.report.panel import panels
from latebloom.report.study import read_sections
from latebloom.results.file import RESULTS_FILE, read_results, write_results
from latebloom.results.record import RunRecord
from latebloom.results.stated import Hypothesis, LossChange, Stated
from latebloom.studies.plan import Arm, Plan, describe_cost
from latebloom.studies.stacks import run_in_stacks
from latebloom.study import train_plan


def test_the_plan_has_the_arms_and_seeds_that_were_asked_for():
    plan: Any = language("paper")
    names = {(arm.task, arm.name) for arm in plan.arms}
    for recurrence, positions in product(("gated delta rule", "Mamba-2"), ("no positions", "rotary")):
        for arm in ("joint", "dat 10%", "dat 30%", "dat by trigger", "stochastic windows", "recurrence alone"):
            assert (f"{recurrence}, {positions}", arm) in names
    assert (DELTA, "Transformer") in names
    assert min(plan.seeds) == 5000
    assert len(plan.seeds) >= 5
    assert min(plan.tuning_seeds) == 1000
    assert all(len({choice.training.learning_rate for choice in arm.choices}) >= 3 for arm in plan.arms)
    assert len({arm.config.training.steps for arm in plan.arms if arm.name.startswith("joint")}) == 3
    assert "GPU minutes" in describe_cost(plan)
    assert "steps per second of one run, without tests" in describe_cost(plan)
    assert len(language("tiny").arms) * len(language("tiny").seeds) < 50


def tiny_run(like: Any = None, **training: Any) -> Any:
    """Return a run of three steps, with the model and the text of another one if it is given."""
    run: Any = like or language("tiny").arms[0].config
    tests = LanguageTest(multiples=(1, 2), documents=3, probes=2)
    return replace(run, training=replace(run.training, length=32, steps=3, **training), evaluation=tests)


def test_a_configuration_is_read_as_it_was_written():
    run = tiny_run(until="10%")
    data = run.to_json()
    again = config_from(data)
    assert again == run
    assert again.hash == run.hash != tiny_run().hash
    with pytest.raises(ConfigError, match="kind: 'langage' is not known; did you mean 'language'"):
        config_from({**data, "kind": "langage"})
    with pytest.raises(ConfigError, match="config: it is not the run of a language model"):
        config_from({"kind": "language", "task": {}, "training": {}})


def in_this_process(configs, folder, *, workers, device, observe):
    return run_in_stacks(configs, folder, torch.device("cpu"), observe)


def test_a_study_of_language_models_is_tuned_resumed_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TEXT, str(write_texts(tmp_path / "texts")))
    plan = language("tiny")
    mamba = next(arm.config for arm in plan.arms if arm.task == MAMBA_ROTARY)
    arms = [
        Arm("joint", tiny_run(), (tiny_run(), tiny_run(learning_rate=1e-4)), group=DELTA),
        Arm("dat 10%", tiny_run(until="1"), group=DELTA, against="joint"),
        Arm("windows", tiny_run(random_windows=True, like=mamba), group=MAMBA_ROTARY, seeds=[5000]),
    ]
    helps = Hypothesis("It helps.", "it does not.", [LossChange(task=DELTA, arm="dat 10%", baseline="joint", at=2)])
    plan = Plan(arms, [5000, 5001], tuning_seeds=[1000], hypotheses=[helps])
    out = tmp_path / "study"
    outcome = train_plan("language", plan, out, in_this_process)
    assert outcome.failures == {}
    records = read_results([outcome.results])
    assert len(records) == 5
    for record in records:
        assert record.evaluation is not None
        assert sorted(record.evaluation.losses) == [32, 64]
        assert all(0 < loss < 9 for loss in record.evaluation.losses.values())
        assert record.curve
    before = (out / RESULTS_FILE).read_bytes()
    train_plan("language", plan, out, in_this_process)  # nothing is trained again
    assert (out / RESULTS_FILE).read_bytes() == before
    sections = read_sections([out])
    first = next(section for section in sections if section.panel.task == DELTA)
    assert {"loss", "loss-changes"} <= first.tables.keys()
    assert first.hypotheses is not None
    assert "nats" in first.hypotheses.table.rows[0][2].text
    assert first.headline.startswith("Lowest loss of 2 arms and of the main baseline: at 1x (32) ")
    assert first.figures[0].name == "loss"
    tried = json.loads((out / "choices.json").read_text())[0]["choices"]
    assert min(tried, key=lambda one: one["loss"]) == tried[json.loads((out / "choices.json").read_text())[0]["chosen"]]


def test_train_names_the_command_that_continues_a_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.json").write_text(json.dumps(tiny_run().to_json()))
    for began, told in (
        (["study", "language", "--scale", "tiny"], "latebloom study language --scale tiny"),
        (["my.py"], "the command that began the study"),
    ):
        (tmp_path / "environment.json").write_text(json.dumps({"command": ["latebloom", *began]}))
        with pytest.raises(SystemExit) as ended:
            main(["train", "--out", str(tmp_path)])
        assert ended.value.code == 2
        said = f"latebloom: out: {tmp_path} holds a language model of a study; continue with: {told}\n"
        assert capsys.readouterr().err == said
    (tmp_path / "environment.json").write_text('{"command": ["latebloom", "study", 5]}')
    with pytest.raises(SystemExit) as ended:
        main(["train", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "environment.json is damaged: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "config.json")])
    assert capsys.readouterr().err.startswith("latebloom: config: it is a language model of a study; ")


def test_inspect_reads_the_model_of_a_finished_run(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_run().to_json()))
    with pytest.raises(
        ConfigError, match=r"holds no finished model; `latebloom train --out .*` says how to continue it"
    ):
        load_model(tmp_path)
    SequenceModel(hybrid(width=8, blocks=1, heads=2), 11).save_pretrained(tmp_path / "model")  # any model
    assert load_model(tmp_path)[1] == f"those in {tmp_path / 'model'}"


HELPS = Hypothesis("It helps.", "it does not.", (LossChange(task="text", arm="dat", baseline="joint", at=4),))


def record(arm: str, seed: int, losses: dict[int, float]) -> RunRecord:
    counts = tuple(Count(length, 4, 1, {"swaps": 2}) for length in losses)
    evaluation = Evaluation.of(10, counts, {"swaps": 0.2})
    return RunRecord(
        study="language",
        task="text",
        arm=arm,
        seed=seed,
        training_length=10,
        evaluation=replace(evaluation, losses=losses),
        config="{}",
        config_hash=f"{arm}{seed}",
        command="",
        stated=Stated((HELPS,)).to_text(),
    )


def runs(dat: float, noise: float = 0.01) -> list[RunRecord]:
    """Five seeds: joint training has 2.0 at 1x and 3.0 at 4x, or 2.4 and 3.4 with half of the tokens."""
    found = []
    for seed in range(5):
        shift = noise * (seed - 2)
        found.append(record("joint", seed, {10: 2.0, 40: 3.0, 80: 3.5}))
        found.append(record("joint, 1/2", seed, {10: 2.4, 40: 3.4, 80: 3.9}))
        found.append(record("dat", seed, {10: 2.1, 40: dat + shift, 80: dat + 0.5 + shift}))
    return found


def test_losses_survive_the_results_file(tmp_path: Path):
    write_results(tmp_path / "r.parquet", runs(2.5))
    found = read_results([tmp_path / "r.parquet"])
    assert [one.evaluation for one in found] == [one.evaluation for one in runs(2.5)]
    assert found[0].stated == runs(2.5)[0].stated


def test_a_change_of_loss_is_paired_and_at_equal_loss_the_baseline_is_interpolated():
    (panel,) = panels(runs(2.8))
    plain = loss_change(LossChange(task="text", arm="dat", baseline="joint", at=4, beyond=True), panel)
    matched = LossChange(task="text", arm="dat", baseline="joint", at=4, matched=("joint, 1/2",))
    equal = loss_change(matched, panel)
    assert plain is not None
    assert equal is not None
    assert plain.mean == pytest.approx(-0.2)  # (2.8 + 3.3) / 2 - (3.0 + 3.5) / 2
    assert equal.mean == pytest.approx(2.8 - 3.1)  # joint training has 3.1 at 4x where it has 2.1 at 1x
    outside = replace(matched, arm="joint, 1/2", baseline="joint", matched=("dat",))
    assert loss_change(outside, panel) is None


@pytest.mark.parametrize(
    ("dat", "noise", "verdict"), [(2.8, 0.01, "supported"), (3.2, 0.01, "refuted"), (2.99, 0.1, "undecided")]
)
def test_the_interval_over_seeds_decides(dat, noise, verdict):
    found = panels(runs(dat, noise))
    ((_, (judged,)),) = judge([HELPS], found)
    assert judged.verdict == verdict


def test_tuning_ranks_language_models_by_their_loss_at_the_training_context():
    one, other = (record("joint", 0, losses).evaluation for losses in ({10: 2.0, 40: 9.0}, {10: 2.1, 40: 3.0}))
    assert one is not None
    assert other is not None
    assert one.score > other.score


def test_the_recurrence_alone_leaves_attention_untrained(corpus, tmp_path: Path):
    settings = small_training(corpus, without_attention=True, steps=4, save_every=2)
    start, _ = build_model(small_model(), 0, corpus.vocabulary, 32)
    train(settings, tmp_path / "run")
    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    before = dict(start.state_dict())
    held = [name for name in after if "self_attn" in name]
    assert held
    assert all(torch.equal(before[name], after[name]) for name in held)
    assert not torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    with pytest.raises(ConfigError, match="without_attention: there is no attention to delay"):
        replace(settings, until="50%")


def test_random_windows_change_what_attention_is_trained_on_and_not_the_test(corpus, tmp_path: Path):
    limited, joint = small_training(corpus, random_windows=True, steps=4), small_training(corpus, steps=4)
    for name, settings in (("limited", limited), ("joint", joint)):
        train(settings, tmp_path / name)
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("limited", "joint"))
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_window_is_the_last_tokens_and_a_pure_function_of_the_step():
    mask = window_mask(6, 2, torch.device("cpu"))[0, 0]
    assert (mask == 0).tolist() == [[0 <= row - column < 2 for column in range(6)] for row in range(6)]
    assert mask.softmax(-1)[3].tolist() == [0, 0, 0.5, 0.5, 0, 0]
    drawn = [draw_window(3, step, 256) for step in range(200)]
    assert drawn == [draw_window(3, step, 256) for step in range(200)]
    assert SMALLEST <= min(drawn) < 32 < 128 < max(drawn) <= 256


def test_every_scale_can_be_planned():
    for scale in SIZES:
        assert language(scale).hypotheses
