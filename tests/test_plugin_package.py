"""A plugin that is installed as a package: its components work in every command, process and stack."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

PACKAGE = Path(__file__).parent / "plugin"
SOURCE = PACKAGE / "src" / "latebloom_example"
DOCS = Path(__file__).parents[1] / "docs"
STUDY = ("study", "elman_or_lstm", "--out", "out", "--workers", "2")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    target = tmp_path_factory.mktemp("site")
    copy = tmp_path_factory.mktemp("source") / "plugin"
    subprocess.run(["cp", "-r", str(PACKAGE), str(copy)], check=True)  # building leaves files behind
    offline = ["--no-index", "--no-build-isolation", "--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(copy)], check=True)
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def command(environment: dict[str, str], cwd: Path, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "latebloom", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return " ".join((ran.stdout + ran.stderr).split())


@pytest.fixture(scope="module")
def studied(installed, tmp_path_factory) -> Path:
    """The folder of its study, on two processes of a CPU, killed on the way and continued."""
    folder = tmp_path_factory.mktemp("studied")
    words = [*STUDY, "--scale", "paper", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "latebloom", *words], cwd=folder, env=installed, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not list(folder.glob("out/parity/elman/seed-*/checkpoints/step-*")):
        time.sleep(0.05)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list(folder.glob("out/parity/*/seed-*/result.json"))) < 4
    command(installed, folder, *words)
    assert len(list(folder.glob("out/parity/*/seed-*/result.json"))) == 4
    return folder


def test_its_components_are_listed(installed, tmp_path):
    said = command(installed, tmp_path, "list")
    for name in ("elman", "biased_sigmoid", "parity", "elman_or_lstm"):
        assert re.search(rf" {name} .*?\(from latebloom_example\.", said), name
    assert "bias=-3.0" in command(installed, tmp_path, "list", "biased_sigmoid")


def test_its_components_pass_the_checks(installed, tmp_path):
    said = command(installed, tmp_path, "check", "latebloom_example")
    for title in ("recurrence elman", "scores biased_sigmoid", "task parity", "study elman_or_lstm"):
        assert title in said
    assert "fails: 0" in said


def test_a_study_that_was_killed_continues_and_its_runs_know_where_their_parts_come_from(studied):
    run = studied / "out" / "parity" / "elman" / "seed-0"
    config = json.loads((run / "config.json").read_text())
    assert config["imports"] == [f"latebloom_example.{name}" for name in ("biased_sigmoid", "elman", "parity")]
    environments = [json.loads(file.read_text()) for file in studied.glob("out/parity/*/seed-*/environment.json")]
    assert any(environment["resumed"] for environment in environments)


def test_its_runs_are_evaluated_inspected_and_reported(installed, studied, tmp_path):
    run = str(studied / "out" / "parity" / "elman" / "seed-1")
    assert "parity" in command(installed, tmp_path, "evaluate", run, "--lengths", "6,12", "--json", "numbers.json")
    assert "ElmanLayer" in command(installed, tmp_path, "inspect", run, "--no-horizon")
    command(installed, tmp_path, "report", str(studied / "out"), "--out", "report")
    assert "latebloom_example.elman" in (tmp_path / "report" / "index.html").read_text()


def test_its_settings_are_those_of_any_other_component(installed, tmp_path):
    changes = ("model.recurrence=elman", "model.recurrence.bias=false", "task=parity", "training.state_noise=0.1")
    small = ("training.steps=4", "training.length=4", "model.width=16", "evaluation.sequences=16", "delay=none")
    command(installed, tmp_path, "train", "--recipe", "demo-joint", *changes, *small, "--out", "run", "--device", "cpu")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["recurrence"] == {"name": "elman", "bias": False}


def test_on_ray(installed, tmp_path):
    pytest.importorskip("ray")
    command(installed, tmp_path, *STUDY, "--scale", "tiny", "--on", "ray", "--device", "cpu")
    assert len(list(tmp_path.glob("out/parity/*/seed-*/result.json"))) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_in_stacks_on_a_gpu(installed, tmp_path):
    command(installed, tmp_path, *STUDY, "--scale", "tiny", "--device", "cuda")
    for file in tmp_path.glob("out/parity/*/seed-*/result.json"):
        assert json.loads(file.read_text())["stacked"] == 2
    command(installed, tmp_path, "check", "latebloom_example")


PAGES = {"your-recurrence": "elman", "your-scores": "biased_sigmoid", "your-task": "parity"}


def shown(page: str) -> str:
    """Return the first code of a page."""
    return codes(page)[0]


def codes(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of_a_page_is_the_component_of_the_package(page):
    assert shown(page) == (SOURCE / f"{PAGES[page]}.py").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_as_printed(page, tmp_path):
    (tmp_path / f"{PAGES[page]}.py").write_text(shown(page))
    first, *others = re.findall(r"^latebloom (.*)$", (DOCS / f"{page}.md").read_text(), re.MULTILINE)
    assert "fails: 0" in command(dict(os.environ), tmp_path, *first.split())
    small = ["training.steps=4", "training.length=4", "model.width=16", "evaluation.sequences=16"]
    for i, line in enumerate(others):
        few = [*small, "delay.until.step=2"] if "demo-dat" in line else small
        command(dict(os.environ), tmp_path, *line.split(), *few, "--out", f"run-{i}", "--device", "cpu")
    assert others


def test_the_rounds_and_hypotheses_of_its_page_make_a_plan():
    whole, rounds, axis, hypotheses = codes("your-study")
    names: dict[str, Any] = {"__name__": "parity_delay_of_the_page"}
    exec(whole, names)
    delayed = names["parity_delay"]("tiny").arms
    names["arms"] = [replace(arm, choices=(arm.config, replace(arm.config, seed=1))) for arm in delayed]
    arm = names["arms"][0]
    exec(f"{rounds}\n{hypotheses}", names)
    exec(axis, {"config": arm.config, "choices": arm.choices})
    assert len(names["Plan"](delayed, seeds=range(10), hypotheses=[names["helps"]]).hypotheses) == 1
    assert [one.share for one in names["rounds"]] == [0.15, 0.4, 1.0, 1.0]


def test_the_study_of_its_page_works_as_printed(tmp_path):
    (tmp_path / "parity_delay.py").write_text(shown("your-study"))
    page = (DOCS / "your-study.md").read_text()
    listed, trained = (line.split() for line in re.findall(r"^latebloom (study .*)$", page, re.MULTILINE))
    assert "parity-delay" in command(dict(os.environ), tmp_path, *listed)
    assert "fails: 0" in command(dict(os.environ), tmp_path, "check", "parity_delay.py")
    assert trained == ["study", "parity_delay.py", "--scale", "tiny"]  # minutes; that study files train is tested above
