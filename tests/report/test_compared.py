"""Arms that say what they are held against: only these pairs are compared, near and far."""

from dataclasses import replace

import pytest
from synthetic import evaluation, record, study

from latebloom.report.compared import comparison_tables, comparisons
from latebloom.report.figures import effects_figure
from latebloom.report.panel import panels
from latebloom.report.study import read_sections, write_report
from latebloom.report.words import caveats
from latebloom.results.file import write_results

LEVELS = {"dat": (0.98, 0.9), "ramp": (0.97, 0.95), "joint": (0.3, 0.1), "joint (late)": (0.3, 0.1)}
AGAINST = {"ramp": ("dat",), "joint": ("dat",), "joint (late)": ("joint", "dat")}


def runs(seeds: int = 10):
    """Four arms, the later of which are held against others; every seed is a little off."""
    return [
        replace(
            record(arm, seed, evaluation({25: 1.0, 75: near - seed / 1000, 400: far - seed / 500 * (arm == "ramp")})),
            against=AGAINST.get(arm, ()),
        )
        for arm, (near, far) in LEVELS.items()
        for seed in range(seeds)
    ]


def only(records):
    (panel,) = panels(records)
    (compared,) = comparisons([panel])
    return panel, compared


def test_only_the_pairs_that_are_named_are_compared_in_the_order_of_the_arms():
    _, compared = only(runs())
    pairs = [("ramp", "dat"), ("joint", "dat"), ("joint (late)", "joint"), ("joint (late)", "dat")]
    assert {length: [(one.first, one.second) for one in several] for length, several in compared.items()} == {
        75: pairs,
        400: pairs,
    }
    assert [one.difference.mean for one in compared[75]] == pytest.approx([-0.01, -0.68, 0.0, -0.68])
    assert {one.together for several in compared.values() for one in several} == {4}
    assert compared[75][0].p_corrected == pytest.approx(4 * 2 / 2**10)


def test_where_no_arm_names_another_all_pairs_are_compared():
    _, compared = only([replace(run, against=()) for run in runs()])
    assert {length: len(several) for length, several in compared.items()} == {75: 6, 400: 6}
    assert all(one.difference.mean >= 0 for several in compared.values() for one in several)  # the better first


def test_fewer_comparisons_settle_with_as_many_seeds_what_all_pairs_cannot():
    names = [f"change {i}" for i in range(24)]
    records = [
        replace(record(arm, seed, evaluation({25: 1.0, 75: level - seed / 1000})), against=others)
        for arm, level, others in [("dat", 1.0, ()), *((name, 0.5 - i / 100, ("dat",)) for i, name in enumerate(names))]
        for seed in range(10)
    ]
    panel, compared = only(records)
    assert max(one.p_corrected for one in compared[75]) < 0.05
    assert "(p < 0.05, corrected for 24 comparisons): 24 of 24 at length 75." in caveats(panel, compared)
    every, all_pairs = only([replace(run, against=()) for run in records])
    assert min(one.p_corrected for one in all_pairs[75]) > 0.5
    note = comparison_tables(every, all_pairs)["compared"].note
    assert "for the 300 comparisons of the study at this distance." in note
    assert "With 10 shared seeds the corrected p cannot be below 0.586." in note


def test_an_arm_whose_counterpart_has_not_finished_is_not_compared_and_still_shown():
    records = [run for run in runs() if run.arm != "joint"]
    records += [replace(record("joint", seed, None, failure="x"), against=("dat",)) for seed in range(10)]
    panel, compared = only(records)
    assert [(one.first, one.second) for one in compared[75]] == [("ramp", "dat"), ("joint (late)", "dat")]
    table = comparison_tables(panel, compared)["effects-far"]
    assert [[cell.text for cell in row[:2]] for row in table.rows] == [
        ["dat", "–"],
        ["ramp", "dat"],
        ["joint (late)", "dat"],
    ]


def test_where_nothing_is_left_of_what_arms_are_held_against_no_others_are_compared_instead():
    records = [run for run in runs() if run.arm in ("ramp", "joint")]
    records += [record("dat", seed, None, failure="x") for seed in range(10)]
    panel, compared = only(records)
    assert not any(compared.values())
    assert comparison_tables(panel, compared) == {}
    assert effects_figure(panel, compared) is None
    assert caveats(panel, compared) == "Means over 10 seeds. No run of dat has finished."


@pytest.mark.parametrize("first", [0, 1])
def test_runs_of_before_arms_could_say_so_count_as_those_beside_them(first):
    new, old = runs(), [replace(run, against=(), seed=run.seed + 10) for run in runs()]
    _, compared = only((new + old, old + new)[first])
    assert [one.difference.seeds for one in compared[75]] == [20] * 4


def test_near_and_far_are_corrected_apart_and_each_by_its_own_number():
    records = [run if run.arm != "joint" else replace(run, evaluation=evaluation({25: 1.0, 75: 0.3})) for run in runs()]
    panel, compared = only(records)  # joint was not tested far
    assert {length: {one.together for one in several} for length, several in compared.items()} == {75: {4}, 400: {2}}
    near, far = (table.note for table in comparison_tables(panel, compared).values())
    assert "for the 4 comparisons of the study at this distance." in near
    assert "for the 2 comparisons of the study at this distance." in far
    assert "corrected for 4 and 2 comparisons" in caveats(panel, compared)


def test_the_table_says_what_each_change_does_near_and_far():
    panel, compared = only(runs())
    tables = comparison_tables(panel, compared)
    assert list(tables) == ["effects", "effects-far"]
    assert [table.head[2] for table in tables.values()] == ["3x (75)", "16x (400)"]
    near, far = (next(row for row in table.rows if row[0].text == "ramp") for table in tables.values())
    assert [cell.text for cell in near[3:]] == ["-1.0", "0 of 10 seeds", "-1.00", "0.002", "0.008"]
    assert [cell.text for cell in far[2:5]] == ["94.1%", "+4.1", "10 of 10 seeds"]
    unpaired = tables["effects"].rows[0]
    assert [cell.text for cell in (unpaired[0], unpaired[1], *unpaired[3:])] == ["dat", *["–"] * 6]


def test_the_sentence_counts_the_significant_differences():
    panel, compared = only(runs())
    assert caveats(panel, compared).endswith(
        "Significant differences from baselines (p < 0.05, corrected for 4 comparisons): 3 of 4 at length 75 and "
        "3 of 4 at length 400."
    )
    alike, compared = only([run for run in runs() if run.arm != "ramp"])
    assert caveats(alike, compared).endswith(
        "corrected for 3 comparisons): 2 of 3 at length 75 and 2 of 3 at length 400."
    )
    few, compared = only(runs(seeds=3))
    assert caveats(few, compared) == (
        "Means over 3 seeds. With so few seeds no difference from a baseline can be significant; 8 shared seeds could "
        "suffice (p < 0.05, corrected for 4 comparisons)."
    )
    note = comparison_tables(few, compared)["effects"].note
    assert "With 3 shared seeds the corrected p cannot be below 1.000." in note


def test_the_picture_has_every_difference_with_its_seeds():
    panel, compared = only(runs())
    figure = effects_figure(panel, compared)
    assert figure is not None
    assert "Paired difference of each arm and its baseline (the arm named under it or dat)." in figure.note
    points = figure.chart["datasets"]["points"]
    means = {(point["arm"], point["at"]): point for point in points if "seed" not in point}
    assert list(dict.fromkeys(arm for arm, _ in means)) == [
        "ramp",
        "joint",
        "joint (late)\nagainst joint",
        "joint (late)",
    ]
    differences = [point["value"] for point in points if point["arm"] == "ramp" and "seed" in point]
    assert differences == pytest.approx([-1.0] * 10 + [5 - seed / 5 for seed in range(10)])  # in points
    far = means["ramp", "16x (400)"]
    assert far["value"] == pytest.approx(4.1)
    assert 3.2 < far["low"] < 4.1 < far["high"] < 5.0
    assert far["interval"] == f"+{far['low']:.1f} to +{far['high']:.1f}"
    assert effects_figure(*only(study(seeds=3))) is None


def test_the_report_has_the_picture_and_the_table(tmp_path):
    write_results(tmp_path / "a.parquet", runs())
    page = write_report(read_sections([tmp_path / "a.parquet"]), tmp_path / "report")
    assert "Effects of changes" in page.read_text()
    assert {path.name for path in (tmp_path / "report").rglob("*effects*")} == {
        *(f"paper-composite-25-effects.{form}" for form in ("svg", "pdf", "png", "md", "tex")),
        *(f"paper-composite-25-effects-far.{form}" for form in ("md", "tex")),
    }
