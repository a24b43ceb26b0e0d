"""Hypotheses beside what was seen: each verdict follows from the numbers."""

import random
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest
from synthetic import evaluation, record

from latebloom.errors import ConfigError, ResultsError
from latebloom.report.hypotheses import Verdicts, verdicts
from latebloom.report.panel import panels
from latebloom.report.power import seeds_needed, seeds_note
from latebloom.report.study import read_sections, write_report
from latebloom.report.words import caveats
from latebloom.results.file import read_results, write_results
from latebloom.results.record import CurvePoint, RunRecord
from latebloom.results.selection import with_selections
from latebloom.results.stated import BestOf, Difference, Hypothesis, Level, Prediction, Stated

AHEAD = Difference(task="composite", arm="dat", baseline="joint", at=3)
EQUAL = replace(AHEAD, equal=True)
MOST = Level(task="composite", arm="dat", at=3, least=0.9)


def arm(name: str, mean: float, seeds: int, spread: float = 0.01, **about: object) -> list[RunRecord]:
    chance = random.Random(name)
    levels = [mean + spread * chance.uniform(-1, 1) for _ in range(seeds)]
    return [
        record(name, seed, evaluation({25: 1.0, 75: min(1.0, max(0.0, level))})) for seed, level in enumerate(levels)
    ]


def stating(runs: list[RunRecord], *predictions: Prediction) -> list[RunRecord]:
    stated = Stated((Hypothesis("DAT helps.", "it does not.", predictions),))
    return [replace(run, stated=stated.to_text()) for run in runs]


def judged(runs: list[RunRecord], *predictions: Prediction) -> tuple[str, list[str]]:
    found = verdicts(panels(stating(runs, *predictions)))
    assert isinstance(found, Verdicts)
    overall = found.sentences[0].removeprefix("Hypothesis 1, ").partition(":")[0]
    return overall, [row[-1].text for row in found.table.rows]


@pytest.mark.parametrize(
    ("dat", "joint", "seeds", "prediction", "verdict"),
    [
        (0.95, 0.80, 12, AHEAD, "supported"),
        (0.83, 0.80, 12, AHEAD, "refuted"),  # ahead, and significantly so, but not by 5 points
        (0.80, 0.95, 12, AHEAD, "refuted"),
        (0.95, 0.80, 3, AHEAD, "undecided"),  # three seeds cannot be significant
        (0.81, 0.80, 12, EQUAL, "supported"),
        (0.95, 0.80, 12, EQUAL, "refuted"),
        (0.80, 0.95, 12, EQUAL, "refuted"),
        (0.81, 0.80, 3, EQUAL, "undecided"),
        (0.95, 0.80, 12, MOST, "supported"),
        (0.85, 0.80, 12, MOST, "refuted"),
        (0.95, 0.80, 9, MOST, "undecided"),
        (0.85, 0.80, 12, Level(task="composite", arm="dat", at=3, most=0.1), "supported"),
        (0.95, 0.80, 12, Level(task="composite", arm="dat", at=3, most=0.1), "refuted"),
        (0.95, 0.80, 12, replace(AHEAD, arm="other"), "undecided"),
        (0.95, 0.80, 12, replace(AHEAD, at=8), "undecided"),
        (0.95, 0.80, 12, replace(AHEAD, task="other"), "undecided"),
    ],
)
def test_a_prediction_is_judged_by_the_seeds(dat, joint, seeds, prediction, verdict):
    runs = [*arm("dat", dat, seeds), *arm("joint", joint, seeds)]
    assert judged(runs, prediction) == (verdict, [verdict])


def test_a_wide_spread_leaves_a_difference_undecided():
    runs = [*arm("dat", 0.6, 12, spread=0.4), *arm("joint", 0.55, 12, spread=0.4)]
    assert judged(runs, AHEAD)[0] == judged(runs, EQUAL)[0] == "undecided"


def test_a_hypothesis_is_refuted_by_one_prediction_and_supported_by_all():
    runs = [*arm("dat", 0.95, 12), *arm("joint", 0.80, 12), *arm("rival", 0.94, 12)]
    rival = replace(AHEAD, baseline="rival")
    assert judged(runs, AHEAD, MOST) == ("supported", ["supported"] * 2)
    assert judged(runs, AHEAD, rival) == ("refuted", ["supported", "refuted"])
    assert judged(runs, AHEAD, replace(AHEAD, at=8)) == ("undecided", ["supported", "undecided"])


def test_many_predicted_differences_are_corrected_together():
    runs = [*arm("dat", 0.95, 6), *arm("joint", 0.80, 6)]
    assert judged(runs, AHEAD)[0] == "supported"  # 6 seeds that agree: p = 1/32
    assert judged(runs, AHEAD, replace(AHEAD, points=4))[0] == "undecided"  # and twice that


def test_the_page_has_hypotheses_controls_and_seeds_that_did_not_learn(tmp_path):
    runs = stating([*arm("dat", 0.95, 12), *arm("joint", 0.80, 12)], AHEAD)
    failed = record("joint", 99, evaluation({25: 0.5, 75: 0.1}))
    control = replace(failed, arm="control", stated=Stated(control=True).to_text())
    write_results(tmp_path / "results.parquet", [*runs, failed, control])
    assert read_results([tmp_path / "results.parquet"]) == [*runs, failed, control]
    sections = read_sections([tmp_path / "results.parquet"])
    page = write_report(sections, tmp_path / "report").read_text()
    assert "Hypothesis 1, supported: DAT helps. It is refuted if it does not." in page
    assert "dat - joint at 3x on composite: at least 5 points" in page
    assert (tmp_path / "report" / "tables" / "paper-composite-25-hypotheses.md").exists()
    assert "which count in the means: joint 1 of 13 and control 1 of 1." in sections[0].caveats
    assert "Negative controls, in which no effect is expected: control." in sections[0].caveats


def test_a_study_without_hypotheses_has_no_such_part(tmp_path):
    write_results(tmp_path / "results.parquet", arm("dat", 0.9, 3))
    (section,) = read_sections([tmp_path / "results.parquet"])
    assert section.hypotheses is None
    assert "Negative" not in caveats(section.panel, {})


def test_what_is_stated_survives_as_text():
    stated = Stated((Hypothesis("a", "b", (AHEAD, MOST)),), True, BestOf(runs=2, at=4, against=("dat",)))
    assert Stated.from_text(stated.to_text()) == stated
    assert Stated().to_text() == ""
    for text in ("[]", "{", '{"hypotheses": [{"claim": 1}]}'):
        with pytest.raises(ResultsError, match="what a study states cannot be read"):
            Stated.from_text(text)


def test_predictions_that_say_nothing_are_refused():
    with pytest.raises(ConfigError, match="give either least or most"):
        Level(task="a", arm="b", at=3)
    with pytest.raises(ConfigError, match="points: 0 is not possible"):
        replace(AHEAD, points=0)
    with pytest.raises(ConfigError, match="at least one Difference or Level"):
        Hypothesis("a", "b", ())


def test_the_best_of_three_is_chosen_on_held_out_sequences_and_paired_with_the_first_seeds():
    stated = Stated(best_of=BestOf(runs=3, against=("dat",))).to_text()
    held_out = [0.1, 0.9, 0.5, 0.3, 0.2, None, 0.7]
    runs = []
    for seed, value in enumerate(held_out):
        curve = [CurvePoint("accuracy", 50, 100, 1.0), CurvePoint("accuracy", 25, 200, 1.0)]
        curve += [] if value is None else [CurvePoint("accuracy", 50, 200, value)]
        curve = curve if value is not None else curve[1:]
        runs.append(replace(record("joint", seed, evaluation({75: seed / 10})), curve=tuple(curve), stated=stated))
    found = [run for run in with_selections(runs) if run.arm == "joint (best of 3)"]
    assert [(run.seed, run.evaluation and run.evaluation.accuracy(75)) for run in found] == [(0, 0.1), (1, 0.3)]
    assert {run.against for run in found} == {("dat",)}
    unmeasured = [replace(run, curve=()) for run in runs]
    assert all(run.evaluation is None for run in with_selections(unmeasured)[len(runs) :])
    assert with_selections([replace(run, stated="") for run in runs]) == [replace(run, stated="") for run in runs]


def test_seeds_needed_follow_the_textbook():
    # Two groups, a standardized difference of 0.5, 5% two-sided, a power of 80%: 63 each (Cohen's table has 64 by t).
    assert seeds_needed(0.10) == 63
    assert seeds_needed(0.20) == pytest.approx(4 * 63, abs=2)
    assert seeds_needed(0.0) == 6


def test_the_report_says_how_many_seeds_five_points_take(tmp_path: Path):
    tuning = [
        replace(run, study="paper, tuning", arm="joint, choice 0", seed=1000 + run.seed, config=run.config)
        for run in arm("joint", 0.7, 4, spread=0.2)
    ]
    write_results(tmp_path / "results.parquet", arm("joint", 0.7, 3))
    write_results(tmp_path / "tuning.parquet", tuning)
    (section,) = read_sections([tmp_path])
    ((name, seeds, _, needed, planned),) = ([cell.text for cell in row] for row in section.tables["power"].rows)
    assert (name, seeds, planned) == ("joint", "4", "3")
    assert int(needed) > 20


def test_after_the_tuning_the_study_says_how_many_seeds_it_takes():
    wide, narrow = arm("joint", 0.7, 4, spread=0.2), arm("dat", 0.9, 4, spread=0.001)
    tuning = [replace(run, arm=f"{run.arm}, choice 1") for run in (*wide, *narrow)]
    chosen = {("composite", "joint"): 1, ("composite", "dat"): 1}
    values = [run.evaluation.accuracy(75) for run in wide if run.evaluation]
    needed = seeds_needed(stdev(values))
    note = seeds_note(tuning, chosen, dict.fromkeys(chosen, 20))
    assert note.endswith(f"takes more seeds than the 20 planned: about {needed:,} for joint on composite")
    assert "the 5000 planned seeds can tell 5 points apart" in seeds_note(tuning, chosen, dict.fromkeys(chosen, 5000))
    few = {("composite", "joint"): 5000, ("composite", "dat"): 5}  # an arm may have seeds of its own
    assert seeds_note(tuning, chosen, few).endswith("than the 5 or 5000 planned: about 6 for dat on composite")
    assert seeds_note(tuning[:1], chosen, few) == ""
