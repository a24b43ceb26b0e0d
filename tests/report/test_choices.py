"""The table that says how an arm's settings were chosen."""

import json
from dataclasses import replace

import pytest
from synthetic import evaluation, record

from latebloom.report.page import study_page
from latebloom.report.panel import panels
from latebloom.report.settings import choices_table, tried_table
from latebloom.report.study import read_sections
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
    (panel,) = panels(runs)
    return {row[0].text: [cell.plain for cell in row[1:]] for row in choices_table(panel, tuning).rows}


def test_it_says_what_was_chosen_of_how_many_on_how_many_seeds_and_by_how_much(studied):
    assert rows(*studied) == {
        "lstm": ["–"] * 5,
        "dat": ["rate=0.3", "3 settings", "2, the best on 4", "80.0%", "70.0%"],
    }


def test_it_says_when_more_might_be_gained_beyond_what_was_tried(studied):
    runs, tuning = studied
    end = "Chosen at an end of the tried range, so values beyond it may be better: dat (rate). "
    end += "Extend the range for every arm, so that all have as many settings to choose from."
    assert choices_table(panels(runs)[0], tuning).note.endswith(end)
    inside = [*tuning, with_rate(0.4, "dat, choice 3", 1000, 0.1, "paper, tuning")]
    assert "at an end" not in choices_table(panels(runs)[0], inside).note
    two = [run for run in tuning if run.arm != "dat, choice 0"]  # one of two is always at an end
    assert "at an end" not in choices_table(panels(runs)[0], two).note


def test_the_next_best_may_be_better_if_failed_runs_were_repeated_after_the_choice(studied):
    runs, tuning = studied
    better = [with_rate(0.4, "dat, choice 3", 1000 + i, 0.95, "paper, tuning") for i in range(4)]
    assert rows(runs, [*tuning, *better])["dat"][3:] == ["80.0%", "95.0%"]
    assert rows(runs, [*tuning, *better[:2]])["dat"][3:] == ["80.0%", "70.0%"]  # tried on fewer seeds


def test_every_setting_is_there_the_best_of_those_that_were_tried_most_first(studied):
    runs, tuning = studied
    tuning.append(with_rate(0.4, "dat, choice 3", 1000, 0.9, "paper, tuning"))
    tuning.append(with_rate(0.4, "dat, choice 3", 1001, None, "paper, tuning"))
    (panel,) = panels(runs)
    assert [[cell.plain for cell in row] for row in tried_table(panel, tuning).rows] == [
        ["dat (chosen)", "rate=0.3", "4", "80.0%"],
        ["dat", "rate=0.2", "4", "70.0%"],
        ["dat", "rate=0.1", "2", "60.0%"],
        ["dat", "rate=0.4", "1 of 2", "–"],
    ]


def test_a_setting_with_a_run_that_failed_is_no_round_and_no_rival(studied):
    runs, tuning = studied
    cut = [
        replace(run, evaluation=None, failure="it died") if run.seed == 1003 and "1" in run.arm else run
        for run in tuning
    ]
    assert sum(run.evaluation is None for run in cut) == 1
    assert rows(runs, cut)["dat"] == ["rate=0.3", "3 settings", "2, the best on 4", "80.0%", "–"]


def test_choices_may_differ_in_the_training_length(studied, tmp_path):
    runs, tuning = studied
    short = [replace(run, training_length=10) if run.arm.endswith("1") else run for run in tuning]
    write_results(tmp_path / "results.parquet", runs)
    write_results(tmp_path / "tuning.parquet", short)
    (section,) = read_sections([tmp_path])
    assert section.tables["choices"].rows[1][2].plain == "3 settings"


def test_a_configuration_that_cannot_be_read_is_not_taken_for_the_chosen_one(studied):
    runs, tuning = ([replace(run, config="no JSON") for run in some] for some in studied)
    assert rows(runs, tuning)["dat"][0] == "–"


def test_held_out_runs_of_a_task_that_is_not_reported_yet_are_shown_like_any(studied, tmp_path):
    runs, tuning = studied
    write_results(tmp_path / "results.parquet", runs)
    write_results(tmp_path / "tuning.parquet", tuning + [replace(run, task="recall") for run in tuning])
    assert [section.panel.study for section in read_sections([tmp_path])] == ["paper", "paper, tuning"]


def test_a_single_choice_is_told_as_one(studied):
    runs, tuning = studied
    only = [run for run in tuning if run.arm.endswith("2")]
    assert rows(runs, only)["dat"] == ["–", "the only one", "4", "80.0%", "–"]


def test_a_phase_that_an_arm_does_not_have_is_not_named(studied):
    runs, tuning = studied

    def with_phases(made, delay):
        rate = json.loads(made.config).get("rate")
        training = {phase: {"learning_rate": rate} for phase in ("delayed", "full")}
        return replace(made, config=json.dumps({"training": training, "delay": delay, "seed": made.seed}))

    for delay, said in (
        (None, "training.full.learning_rate=0.3"),
        ({"hold": "bypass"}, "training.delayed.learning_rate=0.3 training.full.learning_rate=0.3"),
    ):
        told = rows(*([with_phases(made, delay) for made in some] for some in (runs, tuning)))
        assert told["dat"][0] == said


def test_where_nothing_is_chosen_yet_it_says_what_was_tried(studied):
    (lstm, *_), tuning = studied
    waiting = replace(lstm, arm="dat", evaluation=None, failure="not started", config="{}")
    assert rows([lstm, waiting], tuning)["dat"] == ["–", "3 settings", "2, the best on 4", "–", "–"]
    failed = [with_rate(0.1, "dat, choice 0", 1000, None, "paper, tuning")]
    assert rows([lstm, waiting], failed)["dat"] == ["–", "the only one", "1", "–", "–"]


def test_beside_its_study_a_choice_is_a_table_and_alone_its_runs_are_like_any(studied, tmp_path):
    runs, tuning = studied
    write_results(tmp_path / "results.parquet", runs)
    write_results(tmp_path / "tuning.parquet", tuning)
    (section,) = read_sections([tmp_path])
    assert [run.study for run in section.panel.runs] == ["paper"] * 3
    assert "Chosen settings" in study_page([section])
    (alone,) = read_sections([tmp_path / "tuning.parquet"])
    assert alone.panel.arms == ("dat, choice 0", "dat, choice 1", "dat, choice 2")
    assert "choices" not in alone.tables


def test_settings_of_components_that_the_chosen_one_does_not_have_are_at_no_end(studied):
    runs, tuning = studied
    more = []
    for k, base in enumerate((1.0, 2.0, 3.0)):
        made = with_rate(0.1, f"dat, choice {k + 3}", 1000, 0.1, "paper, tuning")
        more.append(replace(made, config=json.dumps(json.loads(made.config) | {"positions": {"base": base}})))
    assert "(rate)" in choices_table(panels(runs)[0], [*tuning, *more]).note
