"""The table that says how an arm's settings were chosen."""

import json
from dataclasses import replace

import pytest
from synthetic import evaluation, record

from latebloom.report.choices import choices_table
from latebloom.report.panel import panels
from latebloom.report.study import read_sections
from latebloom.report.study_page import study_page
from latebloom.results.file import write_results


def with_rate(rate, arm, seed, level, study):
    """A run at this level beyond the training length."""
    made = record(arm, seed, None if level is None else evaluation({25: 1.0, 50: level, 75: level}), study=study)
    config = json.loads(made.config) | {"rate": rate}
    return replace(made, config=json.dumps(config), config_hash=f"{rate}-{seed}")


@pytest.fixture
def studied():
    """Three rates on two held-out seeds, the best two on two more; an arm without choices beside it."""
    tried = {0.1: [0.5, 0.7], 0.2: [0.9, 0.7, 0.6, 0.6], 0.3: [0.6, 0.8, 0.9, 0.9]}
    tuning = [
        with_rate(rate, f"dat, choice {k}", 1000 + i, level, "paper, tuning")
        for k, (rate, levels) in enumerate(tried.items())
        for i, level in enumerate(levels)
    ]
    return [record("lstm", 0, evaluation({25: 1.0, 50: 0.2}))] + [
        with_rate(0.3, "dat", seed, 0.9, "paper") for seed in range(2)
    ], tuning


def rows(runs, tuning):
    (panel,), (of_tuning,) = panels(runs), panels(tuning)
    return {row[0].text: [cell.plain for cell in row[1:]] for row in choices_table(panel, of_tuning).rows}


def test_it_says_what_was_chosen_of_how_many_on_how_many_seeds_and_by_how_much(studied):
    assert rows(*studied) == {
        "lstm": ["–"] * 5,
        "dat": ["rate=0.3", "3 settings", "2, the best on 4", "80.0%", "70.0%"],
    }


def test_where_nothing_is_chosen_yet_it_says_what_was_tried(studied):
    (lstm, *_), tuning = studied
    waiting = replace(lstm, arm="dat", evaluation=None, failure="not started", config="{}")
    assert rows([lstm, waiting], tuning)["dat"] == ["–", "3 settings", "2, the best on 4", "–", "–"]
    failed = [with_rate(0.1, "dat, choice 0", 1000, None, "paper, tuning")]
    assert rows([lstm, waiting], failed)["dat"] == ["–", "1 setting", "–", "–", "–"]


def test_beside_its_study_a_choice_is_a_table_and_alone_its_runs_are_like_any(studied, tmp_path):
    runs, tuning = studied
    write_results(tmp_path / "results.parquet", runs)
    write_results(tmp_path / "tuning.parquet", tuning)
    (section,) = read_sections([tmp_path])
    assert [run.study for run in section.panel.runs] == ["paper"] * 3
    assert "How settings were chosen" in study_page([section])
    (alone,) = read_sections([tmp_path / "tuning.parquet"])
    assert alone.panel.arms == ("dat, choice 0", "dat, choice 1", "dat, choice 2")
    assert "choices" not in alone.tables
