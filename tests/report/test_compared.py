"""Arms that say what they are held against: only these pairs are compared, near and far."""

from dataclasses import replace

import pytest
from synthetic import evaluation, record, study

from latebloom.report.arms import effects_figure
from latebloom.report.compared import comparison_tables, comparisons
from latebloom.report.panel import panels
from latebloom.report.statistics import mean_interval
from latebloom.report.study import read_sections, write_report
from latebloom.report.words import doubt
from latebloom.results.file import write_results

LEVELS = {"dat": (0.98, 0.9), "ramp": (0.97, 0.95), "joint": (0.3, 0.1), "joint (late)": (0.3, 0.1)}
AGAINST = {"ramp": ("dat",), "joint": ("dat",), "joint (late)": ("joint", "dat")}


def runs(seeds: int = 10, **changes: tuple[str, ...]):
    """Four arms, the later of which are held against others; every seed is a little off."""
    against = AGAINST | changes
    return [
        replace(
            record(arm, seed, evaluation({25: 1.0, 75: near - seed / 1000, 400: far - seed / 500 * (arm == "ramp")})),
            against=against.get(arm, ()),
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
        for arm, level, others in [("dat", 1.0, ()), *((name, 0.5, ("dat",)) for name in names)]
        for seed in range(10)
    ]
    panel, compared = only(records)
    assert "change 7" in names
    assert max(one.p_corrected for one in compared[75]) < 0.05
    assert "24 of 24 arms at length 75" in doubt(panel, compared)
    every, all_pairs = only([replace(run, against=()) for run in records])
    assert min(one.p_corrected for one in all_pairs[75]) > 0.5
    assert "With 10 shared seeds and so many comparisons it cannot be below 0.586." in (
        comparison_tables(every, all_pairs)["compared"].note
    )


def test_an_arm_whose_counterpart_has_not_finished_is_not_compared_and_still_shown():
    records = [run for run in runs() if run.arm != "joint"]
    records += [replace(record("joint", seed, None, failure="x"), against=("dat",)) for seed in range(10)]
    panel, compared = only(records)
    assert [(one.first, one.second) for one in compared[75]] == [("ramp", "dat"), ("joint (late)", "dat")]
    table = comparison_tables(panel, compared)["effects"]
    assert [[cell.text for cell in row[:2]] for row in table.rows] == [
        ["dat", "–"],
        ["ramp", "dat"],
        ["joint (late)", "dat"],
    ]


def test_the_table_says_what_each_change_does_near_and_far():
    panel, compared = only(runs())
    (table,) = comparison_tables(panel, compared).values()
    assert table.head[:6] == ("arm", "against", "3x (75)", "ahead, points", "Cliff's delta", "p, corrected")
    ramp = next(row for row in table.rows if row[0].text == "ramp")
    near, far = ([cell.text for cell in part] for part in (ramp[2:6], ramp[6:]))
    assert near[1:] == ["-1.0", "-1.00", "0.008"]
    assert far[:2] == ["94.1%", "+4.1"]
    assert float(far[3]) < 0.05
    assert all(cell.text == "–" for cell in (table.rows[0][1], *table.rows[0][3:6]))


def test_the_sentence_names_the_arms_that_differ():
    panel, compared = only(runs())
    assert doubt(panel, compared).endswith(
        "Different from what they are held against by more than chance (p below 0.05, corrected for 4 comparisons): "
        "ramp, joint and joint (late) against dat at length 75; ramp, joint and joint (late) against dat at length 400."
    )
    few, compared = only(runs(seeds=3))
    assert "So few seeds cannot settle which of 4 differences between arms are chance." in doubt(few, compared)


def test_the_picture_has_every_difference_with_its_seeds():
    panel, _ = only(runs())
    figure = effects_figure(panel)
    assert figure is not None
    assert "or else of dat, seed by seed" in figure.note
    points = figure.chart["datasets"]["points"]
    means = {(point["arm"], point["at"]): point for point in points if "seed" not in point}
    assert list(dict.fromkeys(arm for arm, _ in means)) == [
        "ramp",
        "joint",
        "joint (late)\nagainst joint",
        "joint (late)",
    ]
    differences = [point["value"] for point in points if point["arm"] == "ramp" and "seed" in point]
    assert differences == pytest.approx([-0.01] * 10 + [0.05 - seed / 500 for seed in range(10)])
    far = means["ramp", "16x (400)"]
    expected = mean_interval(differences[10:])
    assert (far["value"], far["low"], far["high"]) == pytest.approx((expected.mean, expected.low, expected.high))
    assert effects_figure(only(study(seeds=3))[0]) is None


def test_the_report_has_the_picture_and_the_table(tmp_path):
    write_results(tmp_path / "a.parquet", runs())
    page = write_report(read_sections([tmp_path / "a.parquet"]), tmp_path / "report")
    assert "What each change does" in page.read_text()
    assert {path.name for path in (tmp_path / "report").rglob("*effects*")} == {
        f"paper-composite-25-effects.{form}" for form in ("svg", "pdf", "png", "md", "tex")
    }
