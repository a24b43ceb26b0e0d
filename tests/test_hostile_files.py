"""Files from strangers: every command refuses them in one sentence, runs nothing, and writes nothing elsewhere."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import evaluation, record

from latebloom import run
from latebloom.cli import main
from latebloom.report.study import read_sections, write_report
from latebloom.results.file import write_results

DEEP = "[" * 100_000 + "]" * 100_000
JSON_FILES = ("config.json", "environment.json", "evaluation.json", "result.json", "manifest.json", "model/config.json")
FILES = (*JSON_FILES, "metrics.jsonl", "model/model.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_run) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    run(tiny_run, folder, device="cpu")
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    told = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2, told
    return told


COMMANDS = (("train", "--out", "run"), ("evaluate", "run"), ("report", "run"), ("inspect", "run"))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["a folder", "a link", "a loop of links", "a pipe", "an endless device"])
def test_something_else_in_the_place_of_a_file_is_refused(kind, file, folder, capsys):
    path = folder / file
    path.rename(folder.parent / "moved")
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"a link": folder.parent / "moved", "a loop of links": path}.get(kind, Path("/dev/zero")))
    refused(capsys, "evaluate", "run")
    if kind != "a folder" or not file.startswith("model"):  # a report does not read the model
        refused(capsys, "report", "run")
    if kind != "a folder":
        refused(capsys, *COMMANDS[0])
        refused(capsys, *COMMANDS[3])


@pytest.mark.parametrize("file", JSON_FILES)
def test_deeply_nested_json_is_one_sentence(file, folder, capsys):
    (folder / file).write_text(DEEP)
    told = [refused(capsys, *words) for words in COMMANDS[1:2]]
    assert all("\n" not in line for line in told)


SETTINGS = {
    "model.width=1000000007": "model.attention.heads: 2 does not divide width 1000000007; choices: 1, 1000000007",
    "model.width=1000000000": "there is not enough memory for this; use smaller settings",
    f"model.layout={'ra' * 100_000}": "model.layout: 200000 characters are not possible; it must be 10000 or less",
    f"model.match_parameters=lstm-{'9' * 5000}": "it must be a recurrence and a width, such as lstm-64",
    "model.blocks=1000000000": "model.blocks: 1000000000 is not possible; it must be 10000 or less",
    "evaluation.multiples=[1e308]": "evaluation.multiples: [1e+308] is not possible; it must be a list, each a",
    f"training.full.batch_size=1{'0' * 30}": "is not possible; it must be 2147483647 or less",
    f"training.steps={'1' * 5000}": "is not possible; it must be a whole number",
    f"training.delayed.warmup={'1' * 400}": "is not possible; it must be 2147483647 or less",
    "training.full.learning_rate=1e300": "is not possible; it must be a finite number of 1e+30 or less",
    "task.keys=1000000000000": "this run needs at least",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda text: text[:40])
def test_a_setting_of_any_size_is_answered_at_once_and_leaves_no_folder(setting, folder, capsys):
    config = str(folder / "config.json")
    assert SETTINGS[setting] in refused(capsys, "train", "--config", config, setting, "--out", "new", "--device", "cpu")
    assert not (folder.parent / "new").exists()


@pytest.mark.parametrize("words", [("train", "--config"), ("evaluate",), ("inspect",), ("report",), ("verify",)])
def test_a_name_that_is_too_long_and_a_pipe_are_one_sentence(words, folder, capsys):
    assert "File name too long" in refused(capsys, *words, "a" * 300)
    os.mkfifo("pipe")
    if words != ("verify",):
        refused(capsys, *words, "pipe")


def test_escape_sequences_do_not_reach_the_terminal(folder, capsys):
    told = refused(capsys, "evaluate", "\x1b[31mred\u2028")
    assert "\x1b" not in told
    assert r"\x1b[31mred\u2028" in told


def test_no_name_in_results_leads_out_of_the_report(tmp_path):
    """An answer's name is a part of the names of its figures."""
    from dataclasses import replace

    seen = evaluation({25: 1.0, 75: 0.5})
    evil = "/../../../victim/escaped\x00\x1b[31m"
    counts = tuple(replace(count, answers={evil: 5, "sum": 7}) for count in seen.counts)
    seen = replace(seen, counts=counts, chance={evil: 0.5, "sum": 0.5})
    (tmp_path / "victim").mkdir()
    write_results(tmp_path / "a.parquet", [record("../../x", 0, seen, study="../../../y", task="/etc")])
    write_report(read_sections([tmp_path / "a.parquet"]), tmp_path / "deep" / "er" / "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "deep", "victim"]
    assert not list((tmp_path / "victim").iterdir())
    written = {path.parent.name for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    assert written == {"report", "figures", "tables"}


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


WATCHED = """
import json, os, sys
root, words = os.path.realpath(sys.argv[1]), sys.argv[2:]
import torch, transformers, safetensors.torch, polars, scipy.special, vl_convert, latebloom.study, latebloom.cli
from latebloom.engine.environment import _commit
from latebloom.report.vega import start_bundling
_commit()  # it asks git
start_bundling().result()  # a process of its own makes the scripts of a page
found, on = [], [False]

def watch(event, arguments):
    if not on[0]:
        return
    if event in ("pickle.find_class", "os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.Popen"):
        found.append((event, str(arguments)[:200]))
    elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "shutil.rmtree"):
        if not os.path.realpath(os.fspath(arguments[0])).startswith(root):
            found.append((event, str(arguments)[:200]))
    elif event == "open" and isinstance(arguments[0], (str, bytes)) and isinstance(arguments[2], int):
        writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        place = os.path.realpath(os.fsdecode(arguments[0]))
        if writes and not place.startswith((root, "/dev/null")):
            found.append((event, place))

sys.addaudithook(watch)
os.chdir(root)
for line in json.loads(words[0]):
    on[0] = True
    try:
        latebloom.cli.main(line)
    except SystemExit:
        pass
    finally:
        on[0] = False
print(json.dumps(found))
"""


def test_no_command_runs_unpickles_or_writes_elsewhere_what_hostile_files_ask_for(finished, tmp_path):
    """An audit hook watches every command over files made to be run, in every place from which something is read."""
    root, bomb = tmp_path / "root", pickle.dumps(Bomb())
    step = "checkpoints/step-00000024"
    of_model = {"model": "model/model.safetensors", "settings": "model/config.json"}
    of_model |= {"weights": f"{step}/model.safetensors", "state": f"{step}/state.json"}
    of_report = {"config": "config.json", "evaluation": "evaluation.json", "metrics": "metrics.jsonl"}
    lines: list[list[str]] = []
    for name, file in (of_model | of_report | {"manifest": "manifest.json"}).items():
        shutil.copytree(finished, root / name)
        (root / name / file).write_bytes(bomb)
        lines += [["report", name]] if name in of_report else []  # a report takes seconds, and reads no model
        lines += [["evaluate", name, "--lengths", "5"], ["inspect", name, "--no-horizon"]]
        lines += [["train", "--out", name], ["verify", name]]
        lines += [["probe", name, "--what", "ablation", "--out", f"{name}-probes"]]
    (root / "model.parquet").write_bytes(bomb)
    (root / "hub").mkdir()
    config = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    (root / "hub" / "config.json").write_text(json.dumps(config | {"intermediate_size": 8, "vocab_size": 20}))
    (root / "hub" / "pytorch_model.bin").write_bytes(bomb)
    (root / "hub" / "x.safetensors").write_bytes(bomb)
    shutil.copytree(root / "hub", root / "index")
    weights = {"weight_map": {"embeddings.word_embeddings.weight": "pytorch_model.bin"}}
    (root / "index" / "model.safetensors.index.json").write_text(json.dumps(weights))
    for name in ("study.json", "results.parquet", "tuning.parquet", "runs.json"):
        folder = root / f"study-{name}"
        shutil.copytree(finished, folder / "seed-0")
        (folder / name).write_bytes(bomb)
        lines += [["report", folder.name], ["verify", folder.name], ["probe", folder.name, "--what", "ablation"]]
        lines += [["study", "timing", "--scale", "tiny", "--dry-run", "--out", folder.name]]
    for name in ("settings.json", "environment.json", "result.json", "manifest.json", "model/config.json"):
        folder = root / f"lm-{name.replace('/', '-')}"
        (folder / "model").mkdir(parents=True)
        for other in ("settings.json", "environment.json", "result.json"):
            (folder / other).write_text("{}")
        (folder / "model" / "config.json").write_text(json.dumps(config))
        (folder / name).write_bytes(bomb)
        lines += [["verify", folder.name], ["inspect", folder.name, "--no-horizon"]]
        lines += [
            ["lm", "evaluate", folder.name],
            ["lm", "train", "--data", folder.name, "--out", f"{folder.name}-run"],
        ]
    lines += [["report", "model.parquet"], ["verify", "model.parquet"], ["train", "--config", "model.parquet"]]
    lines += [["inspect", "hub"], ["inspect", "index"], ["inspect", "model.parquet"]]
    command = [sys.executable, "-c", WATCHED, str(root), json.dumps(lines)]
    own = {"TMPDIR": str(root), "TORCHINDUCTOR_CACHE_DIR": str(root / "torch")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ | own)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == []
    assert not list(root.rglob("exploded"))
    assert "Traceback" not in ran.stderr
    assert "this is a mistake in latebloom" not in ran.stderr


TOO_MANY = {
    "layers": ({"num_hidden_layers": 10**7}, "num_hidden_layers: 10000000 is not possible; it must be 1000 or less"),
    "depths": ({"depths": [10**7, 2]}, "depths: [10000000, 2] is not possible; it must be 1000 or less"),
    "labels": ({"num_labels": 10**8}, "num_labels: 100000000 is not possible; it must be 1000000 or less"),
    "modules": ({}, "cannot build a bert from . (ConfigError: it has more than 10 modules)"),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_a_configuration_of_too_many_parts_is_refused_before_they_are_built(what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("latebloom.integrations.load_model.MOST_MODULES", 10 if what == "modules" else 1000)
    bert = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}
    settings, sentence = TOO_MANY[what]
    Path("deep.json").write_text(json.dumps(bert | {"num_hidden_layers": 1} | settings))
    assert sentence in refused(capsys, "inspect", "deep.json")


@pytest.mark.parametrize("kind", [[], {}, ["language"], 3])
def test_inspect_refuses_a_kind_of_run_that_is_no_text(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps({"kind": kind}))
    assert "config.json is not the configuration of a model" in refused(capsys, "inspect", "config.json")


def test_names_and_sizes_are_not_taken_for_layers(tmp_path, monkeypatch, capsys):
    """Gemma 3n has a vocabulary for each layer, and a label may be called player."""
    monkeypatch.chdir(tmp_path)
    bert = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}
    more = {"num_hidden_layers": 1, "vocab_size_per_layer_input": 262_144, "label2id": {"player": 5000}}
    Path("config.json").write_text(json.dumps(bert | more))
    main(["inspect", "config.json", "--no-horizon"])
    assert "BertSelfAttention" in capsys.readouterr().out


def test_a_model_of_any_size_is_refused_before_it_is_built(folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["width"] = 40_000
    Path("wide.json").write_text(json.dumps(config))
    assert "which takes 238 GiB; give --yes to build it" in refused(capsys, "inspect", "wide.json")
    config["model"]["blocks"] = 10_000
    Path("deep.json").write_text(json.dumps(config))
    assert "describes 30000 layers, which is not possible; it must be 1000 or less" in refused(
        capsys, "inspect", "deep.json"
    )


def test_a_model_that_would_fill_the_memory_is_inspected_without_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("latebloom.integrations.load_model.memory_of", lambda device: 16 * 1000)
    bert = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}
    Path("config.json").write_text(json.dumps(bert | {"num_hidden_layers": 1}))
    main(["inspect", "config.json"])
    assert "Weights: none; with" in capsys.readouterr().out
