"""The README's code, commands and numbers are what they say."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import study

from latebloom import run
from latebloom.recipes import Recipe, recipe
from latebloom.results.file import read_results, schema, write_results
from latebloom.studies.find import find_study, plan_of
from latebloom.studies.plan import Arm, Plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    """The `latebloom ...` lines of the README, without their comments."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("latebloom ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def api_lines(folder: Path, switch: int, *changed: tuple[str, str]) -> float:
    """Run the README's lines, with some numbers in them changed; the accuracy at the training length."""
    (code,) = [block for block in blocks("python") if "lb.train(" in block]
    for before, after in changed:
        assert before in code
        code = code.replace(before, after)
    check = f"\nassert run.switch_step == {switch}\nprint(run.evaluate([25], sequences=256).accuracy(25))"
    ran = subprocess.run([sys.executable, "-c", code + check], cwd=folder, capture_output=True, text=True, check=True)
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    return float(ran.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1500)  # on a busy machine its minute becomes many
def test_the_api_lines_work_as_printed(tmp_path):
    assert api_lines(tmp_path, 500) > 0.9


def test_the_api_lines_work_with_fewer_steps(tmp_path):
    fewer = ("at_step(500)", "at_step(6)"), ("steps=900", "steps=12"), ("width=64", "width=8")
    assert api_lines(tmp_path, 6, *fewer) < 0.9


def test_the_loop_of_your_own_works_as_printed(tmp_path):
    (code,) = [block for block in blocks("python") if "DelayedAttention" in block]
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("DelayedAttention(let in at step 3, ")


def test_the_lines_about_results_work_as_printed(tiny, tmp_path):
    run(tiny, tmp_path / "runs" / "joint-0", device="cpu")
    page = (ROOT / "docs" / "report.md").read_text()
    mine, tuned, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "later.py").write_text(mine)
    plan = plan_of(find_study(str(tmp_path / "later.py")), "tiny")
    assert [arm.name for arm in plan.arms] == ["joint", "at 300", "at 900", "at 1500"]
    faster = replace(tiny, training=replace(tiny.training, steps=2 * tiny.training.steps))
    chosen = eval(tuned, {"Plan": Plan, "Arm": Arm, "dat": tiny, "faster": faster})
    assert chosen.tuning_count == 2 * 2 + 2 * 4
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    (found,) = read_results([tmp_path / "results" / "mine.parquet"])
    assert (found.arm, found.seed, found.evaluation is not None) == ("joint", 0, True)


def test_the_columns_of_a_results_file_are_those_that_the_page_names():
    page = (ROOT / "docs" / "report.md").read_text()
    table = page.partition("| column |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(schema())


def test_the_lines_for_a_model_of_your_own_work_as_printed(tmp_path):
    page = (ROOT / "docs" / "your-model.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("DelayedAttention(held back (bypass)")
    assert "attention  1.self_attn: MultiheadAttention" in ran.stdout


def test_the_table_of_families_names_every_family_that_is_tested():
    page = (ROOT / "docs" / "your-model.md").read_text()
    families = (ROOT / "tests" / "integrations" / "families.py").read_text()
    for family in re.findall(r'^    "(\w+)": \{', families.split("FAMILIES")[1], re.MULTILINE):
        assert re.search(rf"^\|.*\b{family}\b.*\|.*\|.*\|", page, re.MULTILINE), family


SMALLER = [
    "model.width=8", "model.blocks=1", "training.steps=12", "training.full.batch_size=4",
    "training.delayed.batch_size=4", "evaluation.sequences=8", "delay.until.step=6",
]  # fmt: skip


@pytest.mark.timeout(1500)
def test_the_commands_work_as_printed_with_smaller_models(tmp_path):
    from latebloom import recipe

    (tmp_path / "my-run.json").write_text(json.dumps(recipe("demo-dat").to_json()))
    results = tmp_path / "studies" / "paper-tiny" / "results.parquet"
    write_results(results, study(seeds=2, arms=("joint", "dat")))  # instead of the study itself, which takes minutes
    assert [words[0] for words in commands()] == [
        "list",
        *["train"] * 6,
        "evaluate",
        "study",
        "study",
        *["report"] * 2,
        "bench",
    ]
    for words in [words for words in commands() if words[0] not in ("study", "bench")]:  # they have tests of their own
        starts_a_run = "--recipe" in words or "--config" in words
        if starts_a_run:
            words = [word for word in words if not word.startswith("training.steps")] + SMALLER
        command = [sys.executable, "-m", "latebloom", *words]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
    assert len(list((tmp_path / "runs" / "dat").glob("evaluation-25-200-*.json"))) == 1
    assert (tmp_path / "report" / "index.html").exists()


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")]
    assert [line.split()[1] for line in lines] == ["demo", "test"]
    assert all(f"\n{line.split()[1]}:" in makefile for line in lines)


@pytest.mark.parametrize(
    "script", ["figures.py", "olmo_hybrid_figures.py", "performance_tables.py", "results_tables.py", "results_prose.py"]
)
def test_the_tables_are_those_of_the_results(script):
    ran = subprocess.run([sys.executable, f"docs/{script}", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_a_sentence_that_says_something_else_than_the_results_is_named(tmp_path):
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("images", "*.html"))
    shutil.copy(ROOT / "README.md", tmp_path)
    page = tmp_path / "docs" / "results.md"
    text = page.read_text()
    page.write_text(re.sub(r"\d+ of these (\d+)", r"99 of these \1", text, count=1))
    assert page.read_text() != text
    ran = subprocess.run([sys.executable, tmp_path / "docs" / "results_prose.py"], capture_output=True, text=True)
    assert ran.returncode == 1
    (said,) = ran.stderr.splitlines()
    assert said.startswith("results.md does not say: none of 20 seeds does")


def test_the_recipes_of_the_paper_are_the_runs_in_the_results():
    records = read_results([ROOT / "results" / "paper.parquet"])
    runs = {record.arm: record for record in records if record.task == "composite" and record.seed == 0}
    runs = {f"paper-{re.sub('[^a-z]+', '-', arm).strip('-')}": record for arm, record in runs.items()}
    assert sorted(runs) == sorted(name for name in Recipe.members if name.startswith("paper-"))
    for name, record in runs.items():
        assert recipe(name).hash == record.config_hash, name


def test_every_dependency_is_in_the_table_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = (ROOT / "constraints.txt").read_text()
    for requirement in project["dependencies"]:
        name = re.split(r"[><=\[]", requirement)[0]
        assert re.search(rf"^\| .*\b{name}\b.* \|", README, re.MULTILINE), name
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize(
    "heavy", ["pydantic", "rich", "altair", "tyro", "safetensors", "huggingface_hub", "scipy", "polars"]
)
def test_importing_latebloom_imports_nothing_heavy(heavy):
    script = f"import sys; from latebloom import *; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_importing_latebloom_adds_little_to_importing_torch():
    script = "import torch, time; t = time.perf_counter(); from latebloom import *; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.3
