"""The commands of language models as a user meets them, from text to a page."""

import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from families import build
from safetensors.torch import load_file, save_file
from small_lm import small_model, small_training, write_texts
from torch.nn.functional import cross_entropy

from latebloom.cli import main
from latebloom.errors import CheckpointError, ConfigError
from latebloom.evaluation.interval import binomial_interval
from latebloom.lm.corpus import Corpus
from latebloom.lm.evaluate import Evaluating, check_tokenizer, evaluate, load_trained
from latebloom.lm.prepare import Preparing, prepare
from latebloom.lm.saved import read_saved
from latebloom.lm.train import train
from latebloom.lm.trial_page import accuracy_difference, cost_table, describe_text, fewer_seeds
from latebloom.lm.windows import scored_windows, window_batch

FIELDS = [f"{name}={json.dumps(value)}" for name, value in small_model().items() if name != "model_type"]


@pytest.fixture(scope="module")
def trained(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small_training(corpus, until="5"), folder)
    return folder


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.err.startswith("latebloom: ") or "\nlatebloom: " in said.err
    return said.err.strip().splitlines()[-1].removeprefix("latebloom: ")


def test_prepare_says_what_was_made_and_left_out(tmp_path, capsys):
    folder = write_texts(tmp_path / "texts")
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    main(["lm", "prepare", str(folder), "--out", str(tmp_path / "corpus"), "--vocabulary", "320", "--test", "20%"])
    said = capsys.readouterr().out
    assert "Files left out: 1 binary. A package is never divided between splits." in said
    for split in ("train", "validation", "test"):
        assert split in said
    assert Corpus.load(tmp_path / "corpus", verify=True).hash in said


def test_evaluate_measures_a_run_and_any_other_model(trained, corpus, tmp_path, capsys):
    words = ["--multiples", "1,4", "--documents", "6", "--probes", "4"]
    main(["lm", "evaluate", str(trained), *words])
    said = capsys.readouterr().out
    for word in (
        "Loss in nats by tokens of context",
        "128 (4x)",
        "Reach: ",
        "With attention disabled, a token",
        "name (",
    ):
        assert word in said
    found = json.loads((trained / "evaluation.json").read_text())
    assert found["contexts"] == [32, 128]
    assert found["documents"] == 6
    for context in ("32", "128"):
        one, values = found["loss"][context], found["loss_of_documents"][context]
        assert one["mean"] == pytest.approx(sum(values) / len(values))
        assert one["low"] <= one["mean"] <= one["high"]
    assert sum(row["tokens"] for row in found["kinds"] if row["context"] == 32) == 6 * 16
    other = tmp_path / "other"
    shutil.copytree(trained / "model", other)
    sentence = complaint(capsys, "lm", "evaluate", str(other))
    assert sentence == f"evaluate: {other} was not trained here; give --data and --context"
    main(["lm", "evaluate", str(other), "--data", str(corpus.folder), "--context", "32", "--json", "-", *words])
    again = json.loads(capsys.readouterr().out)
    assert {**again, "horizon": 0} == {**found, "horizon": 0}


@pytest.mark.parametrize("family", ["bamba", "jamba"])
def test_evaluate_measures_hybrids_that_were_not_trained_here(corpus, tmp_path, capsys, family):
    """A model that Transformers has saved, with a tokenizer; missing weights are named."""
    model, folder = build(family, vocab_size=corpus.vocabulary), tmp_path / family
    weights = model.state_dict()
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(corpus.folder / file, folder)
    words = ["--data", str(corpus.folder), "--context", "32", "--multiples", "1,2", "--documents", "3", "--probes", "0"]
    main(["lm", "evaluate", str(folder), *words, "--json", str(tmp_path / "found.json")])
    assert f"Weights: those in {folder}." in capsys.readouterr().out.replace("\n", "")
    found = json.loads((tmp_path / "found.json").read_text())
    windows = scored_windows(corpus, "test", 64, 16, 3)
    batch = window_batch(corpus.split("test"), windows, 64)
    for context in (32, 64):
        with torch.no_grad():
            logits = model.eval()(input_ids=batch[:, -context:], use_cache=False).logits
        losses = cross_entropy(logits[:, -17:-1].flatten(0, 1), batch[:, -16:].flatten())
        assert found["loss"][str(context)]["mean"] == pytest.approx(float(losses), rel=1e-4)
    name = next(name for name in weights if "mamba" in name)
    kept = load_file(folder / "model.safetensors")
    del kept[name]
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    main(["lm", "evaluate", str(folder), *words])
    assert f"except 1 that are missing there ({name}, ...)" in " ".join(capsys.readouterr().out.split())
    (folder / "model.safetensors").unlink()
    said = complaint(capsys, "lm", "evaluate", str(folder), *words)
    assert said == f"model: there are no weights in {folder}; they are read from safetensors files"


def test_probes_too_long_for_a_context_are_left_out(trained, corpus):
    model = load_trained(trained).model
    found = evaluate(model, corpus, Evaluating(context=32, multiples=(1, 8), documents=2, probes=2))
    asked = {(one["kind"], one["context"]) for one in found["probes"]}
    assert ("dictionary", 32) not in asked
    assert ("dictionary", 256) in asked


def test_a_corpus_with_another_tokenizer_is_refused(trained, corpus, tmp_path):
    other = prepare([write_texts(tmp_path / "texts", lines=30)], tmp_path / "corpus", Preparing(vocabulary=300))
    with pytest.raises(ConfigError, match=r"was not made with the tokenizer of .*; prepare one with: "):
        check_tokenizer(trained / "model", other)
    check_tokenizer(trained / "model", corpus)


def test_a_pipe_in_the_place_of_a_tokenizer_is_refused_and_not_waited_for(trained, corpus, tmp_path, capsys):
    folder = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    said = complaint(capsys, "lm", "evaluate", str(folder), "--data", str(corpus.folder), "--context", "32")
    assert "tokenizer.json cannot be read" in said
    assert "it is a pipe, not a plain file" in said


@pytest.mark.parametrize("content", ["", "[", "[]", '{"left_out": {}}', '{"left_out": 5}\n{"path": 5}', "[" * 100_000])
def test_a_damaged_list_of_documents_is_one_sentence(content, tmp_path, capsys):
    words = ["lm", "prepare", str(write_texts(tmp_path / "texts")), "--out", str(tmp_path / "corpus")]
    main([*words, "--vocabulary", "300"])
    (tmp_path / "corpus" / "manifest.json").unlink()  # as if it had been killed before the end
    (tmp_path / "corpus" / "documents.jsonl").write_text(content)
    said = complaint(capsys, *words, "--vocabulary", "300")
    assert f"{tmp_path / 'corpus' / 'documents.jsonl'} is damaged" in said
    assert said.endswith("give a new folder")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lm"], "give a command: bench, evaluate, prepare, train (see latebloom lm --help)"),
        (
            ["lm", "trian"],
            "there is no lm command 'trian'; did you mean train? commands: bench, evaluate, prepare, train",
        ),
        (["lm", "train", "--data", "nowhere"], "data: nowhere is not a corpus; make one with: latebloom lm prepare"),
        (["lm", "evaluate", "nowhere"], "model: nowhere holds no model: there is no config.json in it"),
        (["lm", "prepare", "nowhere"], "data: there is no nowhere; give folders or files of text"),
        (
            ["lm", "prepare", ".", "--test", "many"],
            "--test: 'many' is not possible; it must be a share",
        ),
        (["trial", "tiny", "--data", "nowhere"], "data: there is no nowhere; give folders or files of text"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in complaint(capsys, *words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "0"], "steps: 0 is not possible; it must be"),
        (["--tokens", "-5"], "tokens: -5"),
        (["--steps", "2", "--tokens", "9"], "--steps and --tokens exclude each other; give one"),
    ],
)
def test_a_wrong_amount_of_training_is_refused(words, sentence, corpus, capsys, tmp_path):
    given = ["--data", str(corpus.folder), "--out", str(tmp_path / "run"), *words]
    assert complaint(capsys, "lm", "train", *given).startswith(sentence)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["prepare", "train", "evaluate", "bench"])
def test_every_command_of_the_group_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["lm", command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: latebloom lm {command}" in said
    assert "None" not in said


def test_a_trial_trains_both_arms_and_writes_a_page(corpus, tmp_path, capsys, monkeypatch):
    from latebloom.lm import pace, trial
    from latebloom.lm.pace import Cost

    monkeypatch.setattr(pace, "MOST_DOCUMENTS", 12)
    monkeypatch.setattr(pace, "MOST_PROBES", 12)
    words = ["trial", "olmo_hybrid", *FIELDS, "--data", str(corpus.folder), "--out", str(tmp_path / "trial")]
    words += ["--context", "32", "--batch", "1", "--minutes", "0.6", "--seeds", "2", "--processes", "1"]
    for module in (pace, trial):
        monkeypatch.setattr(module, "FEWEST_STEPS", 5)
    monkeypatch.setattr(sys, "argv", ["latebloom", *words])
    monkeypatch.setattr(trial, "measure", lambda *_: Cost(step=0.7, run=1, evaluation=0.5, window=1e-3))
    main(words)
    said, log = capsys.readouterr()
    assert "joint, seed 0 done (1 of 4 runs)" in log
    found = json.loads((tmp_path / "trial" / "trial.json").read_text())
    assert found["recommendation"]["sentence"] in said
    assert found["recommendation"]["verdict"] == "too little training"
    assert {(run["arm"], run["seed"]) for run in found["runs"]} >= {("joint", 0), ("delayed", 0)}
    page = (tmp_path / "trial" / "index.html").read_text()
    for word in (
        found["recommendation"]["sentence"],
        "Loss on the same tokens, by context",
        "switch at step",
        "documents of your text with",
        "and no synthetic traces.",
        "An olmo_hybrid with",
        "The difference has no interval: fewer than 5 seeds",
    ):
        assert word in page
    assert "http-equiv" in page
    before = {file: file.read_bytes() for file in (tmp_path / "trial" / "runs").rglob("*") if file.is_file()}
    main(words)  # continues with the plan that was made, and trains nothing again
    assert {file: file.read_bytes() for file in (tmp_path / "trial" / "runs").rglob("*") if file.is_file()} == before
    sentence = complaint(capsys, *words, "--seeds", "3")
    assert "has a trial with other settings (seeds: 2 -> 3); give a new folder" in sentence
    monkeypatch.setattr(trial, "measure", lambda *_: Cost(step=100, run=1, evaluation=0.5, window=1e-3))
    sentence = complaint(capsys, *words, "--out", str(tmp_path / "slow"))
    assert sentence.startswith("minutes: 0.6 minutes allow 0 steps for each of 4 runs of this model with")


def test_the_cost_of_a_trial_leaves_out_the_times_of_interrupted_runs():
    run = {"steps": 10, "tokens": 600, "switch_step": None, "seconds": 4.0, "cpu_seconds": 3.0, "resumed_at": 0}
    resumed = run | {"seconds": 0.0, "cpu_seconds": 0.0, "resumed_at": 10}
    runs = [run | {"arm": "joint"}, resumed | {"arm": "joint"}, resumed | {"arm": "delayed", "switch_step": 5}]
    joint, delayed = ([cell.text for cell in row] for row in cost_table({"runs": runs}).rows)
    assert joint == ["joint training", "10", "600", "–", "4 s", "3 s", "200"]
    assert delayed == ["delayed attention", "10", "600", "5", "–", "–", "–"]


@pytest.mark.slow
def test_a_trial_of_tiny_on_the_standard_library_keeps_its_time(tmp_path):
    folder = sysconfig.get_paths()["stdlib"]
    words = ["trial", "tiny", "--data", folder, "--include", "*.py", "--out", "trial", "--minutes", "2", "--seeds", "2"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "latebloom", *words], cwd=tmp_path, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 2 * 60 * 2  # two minutes of two cores, however many other processes share them
    found = json.loads((tmp_path / "trial" / "trial.json").read_text())
    for run in found["runs"]:
        assert run["final_loss"] < found["unigram_loss"]
    assert (tmp_path / "trial" / "index.html").exists()


def test_bench_compares_trainer_with_a_bare_loop(corpus, tmp_path, capsys):
    words = ["lm", "bench", "--model", "olmo_hybrid", *FIELDS, "--data", str(corpus.folder), "--context", "32"]
    main([*words, "--batch", "1", "--steps", "2", "--out", str(tmp_path / "bench.json")])
    found = json.loads((tmp_path / "bench.json").read_text())
    rates = found["tokens_per_second"]
    assert found["trainer_of_bare_loop"] == pytest.approx(rates["Trainer"]["best"] / rates["bare loop"]["best"])
    assert "tokens per CPU second" in capsys.readouterr().out


def test_the_text_of_a_trial_is_told_apart_from_the_traces_that_were_added(texts, tmp_path):
    from latebloom.lm.corpus import count_traces

    made = prepare([texts], tmp_path / "corpus", Preparing(vocabulary=320, traces=0.25))
    train, traces = made.manifest["splits"]["train"], count_traces(made)
    lines = (made.folder / "documents.jsonl").read_text().splitlines()[1:]
    own = sum(json.loads(line)["split"] == "train" for line in lines)
    assert train["documents"] - traces["documents"] == own
    said = describe_text({"corpus": made.manifest | {"traces": traces}})
    assert said.startswith(f"Training text: {own:,} documents of your text with {train['tokens'] - traces['tokens']:,}")
    assert f"and {traces['documents']:,} synthetic traces with {traces['tokens']:,} tokens" in said


def test_a_trial_checks_first_and_takes_more_text_until_runs_begin(tmp_path, capsys, monkeypatch):
    from latebloom.lm import trial
    from latebloom.lm.pace import Cost

    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts", files=1, lines=5)
    words = ["trial", "tiny", "--vocabulary", "300", "--processes", "1", "--data", "texts"]
    for wrong, sentence in (
        (["--data", "text"], "data: there is no text"),
        (["--until", "soon"], "until: 'soon' is not known"),
        (["--minutes", "0"], "minutes: 0"),
        (["hidden_size"], "model: 'hidden_size' is not FIELD=VALUE"),
    ):
        assert complaint(capsys, *words, *wrong).startswith(sentence)
    assert complaint(capsys, "trial", "tyni", *words[2:]).startswith("model: ")
    assert not (tmp_path / "trial").exists()
    said = complaint(capsys, *words)
    assert said.startswith("data: ")
    assert "documents have the 65 tokens that are needed for a context of 128; at least 12 documents must" in said
    assert "the split divides no top-level name, so give text under more of them" in said
    first = Corpus.load(tmp_path / "trial" / "corpus").hash
    write_texts(tmp_path / "texts", packages=30)
    monkeypatch.setattr(trial, "measure", lambda *_: Cost(step=1000, run=1, evaluation=0.5, window=1e-3))
    assert complaint(capsys, *words).endswith("and at least 40 are needed; give more minutes")
    assert Corpus.load(tmp_path / "trial" / "corpus", verify=True).hash != first
    (tmp_path / "trial" / "plan.json").write_text("{}")
    (tmp_path / "texts" / "more.py").write_text("more = 1\n")
    said = "data: the text has changed since the trial in trial began (120 files then, 121 now); give a new folder with"
    assert complaint(capsys, *words) == f"{said} --out"


def test_a_difference_of_accuracies_stays_possible_and_is_not_certain():
    none, mixed = np.zeros((5, 12)), np.repeat([[1], [0], [1], [0], [0]], 12, axis=1)
    same = accuracy_difference(none, none)
    high = binomial_interval(0, 60)[1]
    assert (same.mean, same.low, same.high) == pytest.approx((0, -high, high))
    wide = accuracy_difference(1 - mixed, mixed)
    assert wide.low is not None
    assert wide.high is not None
    assert -1 <= wide.low < wide.mean < wide.high <= 1
    assert accuracy_difference(none[:3], mixed[:3]).low is None


def test_a_trial_says_when_fewer_seeds_were_trained():
    found = {"evaluations": {"joint": {"0": {}, "1": {}}}, "plan": {"asked": {"seeds": 2}}}
    assert fewer_seeds(found) == ""
    found["plan"]["asked"]["seeds"] = 5
    assert fewer_seeds(found).startswith("There was time for 2 of the 5 seeds that were asked for")


@pytest.mark.parametrize("content", [b"", b"[1]", b"\0\xff", None], ids=["empty", "a list", "not text", "a pipe"])
@pytest.mark.parametrize("name", ["settings.json", "result.json", "manifest.json"])
def test_a_damaged_file_of_a_run_or_corpus_is_one_sentence(name, content, corpus, tmp_path, capsys):
    shutil.copytree(corpus.folder, tmp_path / "corpus")
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "settings.json").write_text(json.dumps(asdict(small_training(corpus, steps=4)), default=str))
    file = tmp_path / ("corpus" if name == "manifest.json" else "lm") / name
    file.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    words = ["lm", "train", "--data", str(tmp_path / "corpus"), "--out", str(tmp_path / "lm"), "--steps", "4"]
    if name == "result.json":
        with pytest.raises(CheckpointError, match=f"{file} is damaged"):
            read_saved(file)
        return
    assert f"{file} is damaged" in complaint(capsys, *words)
    if name == "settings.json":
        assert f"{file} is damaged" in complaint(capsys, "lm", "evaluate", str(tmp_path / "lm"))
