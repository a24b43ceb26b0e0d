"""Figures in README.md and docs/ are those of the files in results/."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from latebloom.config import config_from
from latebloom.recipes import Recipe, recipe
from latebloom.results.file import read_results
from latebloom.studies.find import find_study, known_studies, plan_of
from latebloom.studies.mechanism import MATCHED

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, root / "docs" / "fill.py", "--check"], capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy what docs/fill.py reads, so that a test can change it."""
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_pages_and_pictures_agree_with_the_results():
    ran = check(ROOT)
    assert ran.returncode == 0, ran.stderr


MISTAKES = [
    ("README.md", "| 84.8% [", "| 94.8% [", "accuracies("),
    ("docs/results/README.md", "-->44<!--", "-->54<!--", 'points("paper/dat", "paper/joint", 16) is 44'),
    ("docs/results/holding.md", "**-62.0 [", "**-12.0 [", 'effects("holding") is'),
    ("docs/performance.md", "| 14,165 (", "| 12,380 (", "gpu_targets() is"),
    ("docs/results/timing.md", "On the sum alone", "On the sum, with 97% right,", "97% stands outside a mark"),
    (
        "README.md",
        "The tuned variant",
        "It holds in 20 of 20 seeds. The tuned variant",
        "20 of 20 stands outside a mark",
    ),
]


def test_figures_and_pictures_that_differ_from_the_results_are_named(copy):
    with (copy / "results" / "demo-seeds.json").open("a") as file:
        file.write("\n")  # another file with the same figures
    for page, before, after, _ in MISTAKES:
        text = (copy / page).read_text()
        assert before in text
        (copy / page).write_text(text.replace(before, after, 1))
    changed = {copy / page for page, *_ in MISTAKES}
    for page in set((copy / "docs").rglob("*.md")) - changed:
        page.unlink()  # the test above checks all pages
    ran = check(copy)
    assert ran.returncode == 1
    for page, _, _, said in MISTAKES:
        assert re.search(rf"^{re.escape(page)}: .*{re.escape(said)}", ran.stderr, re.MULTILINE), said
    assert "docs/images/demo-seeds.svg was made from other results" in ran.stderr
    assert "paper.svg" not in ran.stderr


def test_the_recipes_of_the_paper_are_the_runs_in_the_results():
    records = read_results([ROOT / "results" / "paper.parquet"])
    runs = {record.arm: record for record in records if record.task == "composite" and record.seed == 0}
    runs = {f"paper-{re.sub('[^a-z]+', '-', arm).strip('-')}": record for arm, record in runs.items()}
    assert sorted(runs) == sorted(name for name in Recipe.members if name.startswith("paper-"))
    for name, record in runs.items():
        assert recipe(name) == config_from(json.loads(record.config)), name


@pytest.mark.parametrize("name", ["paper", "timing", "holding"])
def test_the_runs_in_the_results_are_those_that_the_study_plans(name):
    plan = plan_of(known_studies()[name], "paper")
    arms = {(arm.task, arm.name): arm for arm in plan.arms}
    records = read_results([ROOT / "results" / f"{name}.parquet"])
    assert {(record.task, record.arm) for record in records} == set(arms)
    assert len(records) == plan.run_count
    for record in records:
        arm = arms[record.task, record.arm]
        trained = config_from(json.loads(record.config))
        assert trained in [replace(config, seed=record.seed) for config in arm.choices or (arm.config,)], record.name


def test_the_study_of_mechanisms_has_the_settings_that_paper_chose_and_an_arm_that_differs_in_the_delay_alone():
    records = read_results([ROOT / "results" / "paper.parquet"])
    arms = plan_of(find_study("mechanism"), "paper").arms
    for task in ("composite", "modular_sum"):
        runs = {arm.name: arm.config for arm in arms if arm.task == task}
        for name in ("joint", "dat"):
            published = next(run for run in records if (run.task, run.arm, run.seed) == (task, name, 0))
            unprobed = replace(runs[name], training=replace(runs[name].training, probe_every=0))
            assert replace(unprobed, seed=0) == config_from(json.loads(published.config))
        joint, matched = runs["joint"], runs[MATCHED]
        assert matched.delay is not None
        assert not matched.delay.withhold
        assert replace(matched, delay=None, training=joint.training) == joint
        # One schedule through both phases, as in joint training, which has one phase.
        assert replace(matched.training, restart=joint.training.restart) == joint.training


def test_the_study_of_the_demo_has_the_arms_of_its_results():
    runs = json.loads((ROOT / "results" / "demo-seeds.json").read_text())["runs"]
    plan = plan_of(find_study(str(ROOT / "docs" / "demo_study.py")), "paper")
    assert {(arm.name, seed) for arm in plan.arms for seed in plan.seeds} == {
        (run["name"], run["seed"]) for run in runs
    }
