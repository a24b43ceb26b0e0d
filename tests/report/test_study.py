"""A study's report, from results files alone: what it says, and what it leaves on the disk."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from commands import latebloom
from rich.console import Console
from synthetic import evaluation, record, study

from latebloom.cli import main
from latebloom.errors import ConfigError
from latebloom.report.compared import comparison_table, comparisons
from latebloom.report.figures import MOST_LINES, accuracy_figure, answer_figures, arms_figure, curve_figures
from latebloom.report.page import study_page
from latebloom.report.panel import panels
from latebloom.report.study import read_sections, write_report
from latebloom.report.study_tables import accuracy_table, every_length_table, reach_table
from latebloom.report.terminal import show_sections
from latebloom.report.words import caveats, headline
from latebloom.results.file import write_results

HOSTILE = "<script>alert(1)</script>"


def only(records):
    (panel,) = panels(records)
    return panel


def rows(table) -> dict[str, list[str]]:
    return {row[0].text: [cell.plain for cell in row[1:]] for row in table.rows}


def test_runs_that_share_study_task_and_training_length_share_a_panel():
    records = [*study(seeds=2), *study(seeds=2, tasks=("recall",), arms=("joint",)), *study(study="other", seeds=1)]
    records.append(record("joint", 0, evaluation({10: 1.0}, training_length=10), training_length=10))
    found = panels(records)
    assert [(panel.study, panel.task, panel.training_length) for panel in found] == [
        ("paper", "composite", 25),
        ("paper", "recall", 25),
        ("other", "composite", 25),
        ("paper", "composite", 10),
    ]
    assert found[1].of_study == found[0].of_study == found[0].arms
    assert found[1].arms == ("joint",)


def test_arms_stand_in_the_order_of_the_panel_that_has_the_most():
    records = study(seeds=1, tasks=("recall",), arms=("joint", "dat")) + study(seeds=1, arms=("joint", "late", "dat"))
    few, many = panels(records)
    assert few.of_study == many.of_study == ("joint", "late", "dat")
    assert few.arms == ("joint", "dat")
    assert [row[0].text for row in accuracy_table(few).rows] == ["joint", "dat"]


def test_the_accuracy_table_has_means_over_seeds_and_shows_what_is_missing():
    records = [
        record("dat", 0, evaluation({25: 1.0, 50: 0.9, 75: 0.8})),
        record("dat", 1, evaluation({25: 1.0, 50: 0.7, 75: 0.9})),
        record("dat", 2, None, failure="stopped"),
        record("joint", 0, evaluation({25: 0.5, 75: 0.0})),
        record("gap", 0, evaluation({25: 0.5, 50: 0.3})),
        record("gap", 1, evaluation({25: 0.5, 75: 0.2})),
        record("lstm", 0, None, failure="stopped"),
    ]
    table = accuracy_table(only(records))
    assert table.head == ("arm", "seeds", "1x (25)", "2x (50)", "3x (75)")
    assert rows(table) == {
        "dat": ["2 of 3", "100.0% [100.0, 100.0]", "80.0% [70.0, 90.0]", "85.0% [80.0, 90.0]"],
        "joint": ["1", "50.0%", "–", "0.0%"],
        "gap": ["2", "50.0% [50.0, 50.0]", "30.0% (1 seed)", "20.0% (1 seed)"],
        "lstm": ["0 of 1", "–", "–", "–"],
    }


def test_the_short_table_keeps_whole_multiples_and_the_longest_length():
    levels = {10: 1.0, 25: 1.0, 30: 1.0, 50: 1.0, 75: 1.0, 90: 1.0, 400: 0.5, 460: 0.5}
    panel = only([record("dat", 0, evaluation(levels))])
    heads = ("1x (25)", "2x (50)", "3x (75)", "16x (400)", "18.4x (460)")
    assert accuracy_table(panel).head[2:] == heads
    every = every_length_table(panel)
    assert [row[0].text for row in every.rows] == [f"{n / 25:.3g}x ({n})" for n in levels]


def test_reach_and_cliff_are_those_of_the_seeds():
    records = [
        record("joint", 0, evaluation({25: 1.0, 50: 0.4, 75: 0.2})),
        record("joint", 1, evaluation({25: 1.0, 50: 0.95, 75: 0.2})),
        record("dat", 0, evaluation({25: 1.0, 50: 1.0, 75: 0.95})),
        record("short", 0, evaluation({25: 1.0})),
    ]
    assert "0x if it is lower at the shortest (25)." in reach_table(only(records)).note
    assert rows(reach_table(only(records))) == {
        "joint": ["1.5x [1, 2]", "1x", "2x", "0 of 2 [0%, 84%]", "1 of 2 [1%, 99%]", "50", "0 of 2"],
        "dat": ["3x", "3x", "3x", "1 of 1", "0 of 1", "none", "0 of 1"],
        "short": ["1x", "1x", "1x", "1 of 1", "–", "–", "0 of 1"],
    }


def test_arms_are_compared_at_three_times_the_training_length_or_where_most_can_be():
    at_three = only(study(seeds=3))
    assert at_three.compared_length == 75
    assert (
        only(
            [record("a", 0, evaluation({25: 1.0, 60: 0.5})), record("b", 0, evaluation({25: 1.0, 50: 0.5}))]
        ).compared_length
        == 25
    )
    assert (
        only(
            [record("a", 0, evaluation({25: 1.0, 75: 0.5})), record("b", 0, evaluation({25: 1.0, 50: 0.5}))]
        ).compared_length
        == 25
    )
    assert only([record("a", 0, evaluation({25: 1.0, 75: 0.5, 400: 0.1}))]).compared_length == 75
    assert only([record("a", 0, None, failure="x")]).compared_length is None


def test_the_correction_is_over_all_panels_of_a_study_but_not_over_studies():
    records = [*study(seeds=6, tasks=("composite", "recall")), *study(study="other", seeds=6, arms=("joint", "dat"))]
    near_and_far = comparisons(panels(records))
    assert all(list(one) == [75, 400] for one in near_and_far)
    first, second, other = (one[75] for one in near_and_far)
    assert (len(first), len(second), len(other)) == (6, 6, 1)
    assert {one.p for one in (*first, *second)} == {2 / 64}
    assert all(one.p_corrected == pytest.approx(12 * 2 / 64) for one in (*first, *second))
    assert {one.together for one in (*first, *second)} == {12}  # those made far out are a family of their own
    assert other[0].p_corrected == other[0].p
    table = comparison_table(panels(records)[0], 75, first)
    assert table.rows[0][0].text == "dat"
    assert rows(table)["dat"][2:] == ["6 of 6 seeds", "+1.00", "0.031", "0.375"]
    assert "corrected (Holm) for the 12 comparisons of the study at this distance." in table.note
    assert "With 6 shared seeds the corrected p cannot be below 0.375." in table.note


def two(ours: float, theirs: float, seeds: int = 1):
    return [
        record(arm, seed, evaluation({25: 1.0, 75: level}))
        for arm, level in (("joint", theirs), ("dat", ours))
        for seed in range(seeds)
    ]


FAILED = [record("mamba", 0, None, failure="x")]


@pytest.mark.parametrize(
    ("records", "seen", "doubted"),
    [
        (
            two(0.98, 0.25, 8),
            "All answers right at 3x (75): dat 98.0%, joint 25.0%. At 90% or more: dat.",
            "Means over 8 seeds. Paired difference dat - joint: +73.0 points over 8 shared seeds (p = 0.0078).",
        ),
        (
            two(0.98, 0.25, 5) + FAILED,
            "At 90% or more: dat.",
            "No run of mamba has finished. Paired difference dat - joint: +73.0 points over 5 shared seeds (p = 0.062, "
            "not significant; with so few seeds p cannot be below 0.0625, and 6 seeds could suffice).",
        ),
        (two(0.5, 0.25, 2), "At 90% or more: none.", "Means over 2 seeds."),
        (two(0.001, 0.0, 2), "At 90% or more: none, and none is clearly above guessing.", "Means over 2 seeds."),
        (two(0.003, 0.0, 1), "At 90% or more: none, and none is clearly above guessing.", "One seed each"),
        (two(0.003, 0.0, 1)[1:], "At 90% or more: none, and none is clearly above guessing.", "One seed"),
        ([record("dat", i, evaluation({75: n})) for i, n in enumerate((0.0, 0.8))], "At 90% or more: none.", ""),
        (two(0.95, 0.95, 2), "At 90% or more: all.", "joint - dat: +0.0 points over 2 shared seeds (p = 1, not"),
        (
            [*two(0.95, 0.95, 2), record("dat", 2, evaluation({75: 1.0})), record("joint", 2, evaluation({75: 0.999}))],
            "At 90% or more: all.",
            "dat - joint: +0.0 points over 3 shared seeds (p = 1, not significant",
        ),
        (two(0.98, 0.25), "All answers right at 3x (75): dat 98.0%", "One seed each: there are no error bars"),
        (two(0.98, 0.25)[1:], "dat 98.0%. At 90% or more: all.", "One seed"),
        (FAILED, "No run on composite has finished.", ""),
    ],
)  # fmt: skip
def test_the_headline_says_what_the_numbers_say(records, seen, doubted):
    panel = only(records)
    (compared,) = comparisons([panel])
    assert seen in headline(panel)
    assert doubted in caveats(panel, compared)


def test_a_difference_that_seeds_do_not_bear_out_is_called_so():
    ours, theirs = [0.9, 0.2, 0.8, 0.3, 0.9, 0.1], [0.3, 0.8, 0.2, 0.7, 0.4, 0.6]
    records = [
        record(arm, seed, evaluation({25: 1.0, 75: level}))
        for arm, levels in (("dat", ours), ("joint", theirs))
        for seed, level in enumerate(levels)
    ]
    panel = only(records)
    assert "(p = 0.91, not significant)" in caveats(panel, *comparisons([panel]))


def test_who_is_ahead_is_said_of_the_seeds_that_both_have():
    levels = {"dat": {0: 0.5, 1: 0.5, 9: 1.0}, "joint": {0: 0.6, 1: 0.6}}
    records = [
        record(arm, seed, evaluation({25: 1.0, 75: level})) for arm in levels for seed, level in levels[arm].items()
    ]
    panel = only(records)
    assert panel.standings()[0][0] == "dat"
    assert "dat - joint: -10.0 points over 2 shared seeds" in caveats(panel, *comparisons([panel]))


def test_of_many_arms_the_headline_names_the_best_two_and_the_last():
    levels = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.95, "e": 0.3}
    text = headline(only([record(arm, 0, evaluation({75: level})) for arm, level in levels.items()]))
    assert "d 95.0%, b 90.0%, a 10.0% (best, second and last of 5 arms)" in text


def points(chart) -> list[dict]:
    return chart["datasets"]["points"]


def test_the_main_picture_has_a_line_an_arm_with_its_band_and_no_point_where_nothing_was_tested():
    records = [*two(0.98, 0.25, 2), record("short", 0, evaluation({25: 0.5})), *FAILED]
    panel = only(records)
    drawn = {(row["run"], row["length"]): row for row in points(accuracy_figure(panel).chart)}
    assert set(drawn) == {("dat", 25), ("dat", 75), ("joint", 25), ("joint", 75), ("short", 25)}
    assert drawn["joint", 75]["accuracy"] == 0.25
    assert drawn["joint", 75]["over"] == "2 seeds"
    assert (drawn["short", 25]["low"], drawn["short", 25]["interval"]) == (None, "none")
    text = json.dumps(accuracy_figure(panel).chart)
    assert '"domain": ["joint", "dat", "short", "mamba"]' in text  # colours are the study's
    assert '"values": ["joint", "dat", "short"]' in text  # the legend is the panel's


def test_each_answer_has_a_picture_and_so_has_each_measure_of_training():
    panel = only(study(seeds=2))
    assert [figure.name for figure in answer_figures(panel)] == ["accuracy-sum", "accuracy-recall"]
    names = [
        "curve-loss",
        "curve-accuracy-25",
        "curve-accuracy-75",
        "curve-accuracy_sum-75",
        "curve-accuracy_recall-75",
    ]
    figures = curve_figures(panel)
    assert [figure.name for figure in figures] == names
    drawn = points(figures[0].chart)
    assert {(row["run"], row["seed"]) for row in drawn} == {(arm, seed) for arm in panel.arms for seed in (0, 1)}
    assert all(len(row["step"]) == len(row["value"]) == 100 for row in drawn)
    marks = [layer["data"]["values"] for layer in figures[0].chart["layer"] if "values" in layer.get("data", {})]
    assert marks == [[{"run": "dat", "step": 9000, "what": "end of the delay"}]]
    assert curve_figures(only(two(0.9, 0.2))) == []


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "paper.parquet"
    write_results(path, [*study(seeds=2, arms=("joint", "dat")), *FAILED])
    return path


def test_a_report_leaves_a_page_pictures_and_tables(results, tmp_path):
    page = write_report(read_sections([results]), tmp_path / "out")
    assert page == tmp_path / "out" / "index.html"
    figures = {file.name for file in (tmp_path / "out" / "figures").iterdir()}
    stems = {name.rpartition(".")[0] for name in figures}
    assert figures == {f"{stem}.{form}" for stem in stems for form in ("svg", "pdf", "png")}
    assert {"paper-composite-25-accuracy", "paper-composite-25-curve-loss"} <= stems
    for form, magic in (("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        content = (tmp_path / "out" / "figures" / f"paper-composite-25-accuracy.{form}").read_bytes()
        assert magic in content[:200]
    tables = {file.name for file in (tmp_path / "out" / "tables").iterdir()}
    assert tables == {
        f"paper-composite-25-{name}.{form}"
        for name in ("accuracy", "reach", "compared", "compared-far")
        for form in ("md", "tex")
    }
    text = (tmp_path / "out" / "tables" / "paper-composite-25-accuracy.md").read_text()
    assert re.search(r"\| mamba \| 0 of 1 \| – \|", text)
    with pytest.raises(ConfigError, match=r"out: .*paper.parquet cannot be written"):
        write_report(read_sections([results]), results)


def test_two_panels_never_write_the_same_file(tmp_path):
    write_results(tmp_path / "a.parquet", [*study(study="A b", seeds=1), *study(study="a-b", seeds=1)])
    names = [section.name for section in read_sections([tmp_path / "a.parquet"])]
    assert names == ["a-b-composite-25", "a-b-composite-25-2"]


class Elements(HTMLParser):
    """What a browser would build of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_names_are_text_wherever_they_stand(tmp_path):
    records = study(study=HOSTILE, tasks=(f"t {HOSTILE}",), arms=(HOSTILE, "dat"), seeds=2)
    records.append(record(f"failed {HOSTILE}", 0, None, study=HOSTILE, task=f"t {HOSTILE}", failure=HOSTILE))
    write_results(tmp_path / "a.parquet", records)
    sections = read_sections([tmp_path / "a.parquet"])
    page = Elements(study_page(sections))
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert [value for _, given in page.tags for name, value in given.items() if name in ("src", "href")] == ["data:,"]
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert sum(text == HOSTILE for text in page.texts) > 10  # the title, headings, cells, runs
    data = json.loads(next(text for text in page.texts if text.startswith('{"charts"')))
    (main,) = [chart for name, chart in data["charts"].items() if name.endswith("-25-accuracy")]
    assert HOSTILE in {row["run"] for row in points(main)}
    written = write_report(sections, tmp_path / "out").parent
    for table in (written / "tables").glob("*.md"):
        assert "<" not in table.read_text()
    drawn = (written / "figures" / f"{sections[0].name}-accuracy.svg").read_text()
    assert "<script" not in drawn
    assert "&lt;script&gt;alert(1)" in drawn


def test_one_seed_is_said_to_have_no_error_bars(tmp_path):
    write_results(tmp_path / "a.parquet", two(0.98, 0.25))
    sections = read_sections([tmp_path / "a.parquet"])
    text = " ".join(Elements(study_page(sections).partition("<script")[0]).texts)
    assert text.count("no error bars") >= 3
    assert "bootstrap" not in text
    assert "compared" not in sections[0].tables


def test_the_page_has_every_run_with_its_configuration_and_command(tmp_path):
    other = replace(study(seeds=1)[0], seed=7, command="latebloom train paper-dat")  # does not have its configuration
    records = [*study(seeds=2), *FAILED, other]
    write_results(tmp_path / "a.parquet", records)
    page = Elements(study_page(read_sections([tmp_path / "a.parquet"])))
    assert sum(given.get("class") == "run" for tag, given in page.tags if tag == "details") == len(records)
    assert json.dumps(json.loads(other.config), indent=2) in page.texts
    places = [given for tag, given in page.tags if tag == "pre" and "data-from" in given]
    assert len(places) == len(records) - 1
    for one in records:
        assert one.command in page.texts
        if one is not other:
            assert any(one.command[int(at["data-from"]) : int(at["data-to"])] == one.config for at in places)


def test_studies_are_named_where_there_are_several(tmp_path, capsys):
    def said(*names):
        runs = [replace(run, study=name) for name in names for run in study(seeds=2, arms=("joint", "dat"))]
        write_results(tmp_path / "a.parquet", runs)
        show_sections(Console(), read_sections([tmp_path / "a.parquet"]))
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("Study ")]

    assert said("mine") == []
    assert said("mine", "yours") == ["Study mine", "Study yours"]


def test_the_command_makes_a_report_and_says_where(results, tmp_path):
    ran = latebloom("report", "paper.parquet", "--out", "there", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Page: there/index.html" in ran.stdout
    assert "All answers right at 3x (75): dat" in " ".join(ran.stdout.split())
    assert (tmp_path / "there" / "index.html").exists()


def test_the_report_of_one_folder_goes_into_it(results, tmp_path, monkeypatch, capsys):
    """As that of `latebloom study`; the report of files, or of several folders, goes into the current one."""
    (tmp_path / "mine").mkdir()
    shutil.copy(results, tmp_path / "mine" / "results.parquet")
    monkeypatch.chdir(tmp_path)
    main(["report", "mine"])
    assert "Page: mine/report/index.html" in " ".join(capsys.readouterr().out.split())
    assert Path("mine/report/index.html").exists()
    assert not Path("report").exists()
    main(["report", "mine/results.parquet"])
    assert Path("report/index.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["report"], "give results files or folders of runs"),
        (["report", "none.parquet"], "results: none.parquet cannot be read (No such file or directory)"),
        (["report", "text.parquet"], "results: text.parquet is not a parquet file, or a damaged one"),
        (["report", "paper.parquet", "paper.parquet"], "is in both paper.parquet and paper.parquet"),
    ],
)
def test_a_mistake_is_one_sentence(results, tmp_path, monkeypatch, capsys, words, sentence):
    (tmp_path / "text.parquet").write_text("not a table")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "report").exists()


def test_arms_stand_in_the_order_of_the_file_and_the_best_comes_first_in_comparisons():
    panel = only(study(seeds=3))
    assert panel.arms == ("lstm", "transformer", "joint", "dat")
    means = [one.mean for _, one in panel.standings()]
    assert all(better >= worse for better, worse in pairwise(means))


def test_many_arms_are_drawn_side_by_side_with_every_seed(tmp_path):
    names = [f"arm {i}" for i in range(MOST_LINES + 1)]
    records = [
        record(name, seed, evaluation({25: 1.0, 75: 0.5 + seed / 10, 400: 0.1 * i}))
        for i, name in enumerate(names)
        for seed in range(3)
    ]
    panel = only(records)
    figure = arms_figure(panel)
    assert figure is not None
    points = figure.chart["datasets"]["points"]
    means = [point for point in points if "seed" not in point]
    assert [(point["arm"], point["at"]) for point in means] == [
        (name, at) for at in ("3x (75)", "16x (400)") for name in names
    ]
    near, far = means[0], means[-1]
    assert near["value"] == pytest.approx(0.6)
    assert near["low"] < near["value"] < near["high"]
    assert far["value"] == pytest.approx(0.6)
    of_first = [point["value"] for point in points if point["arm"] == "arm 0" and "seed" in point]
    assert of_first == pytest.approx([0.5, 0.6, 0.7, 0.0, 0.0, 0.0])
    write_results(tmp_path / "a.parquet", records)
    page = study_page(read_sections([tmp_path / "a.parquet"]))
    assert page.index("paper-composite-25-arms") < page.index("<summary>By length</summary>")


def test_few_arms_have_lines_first_and_then_every_seed(tmp_path):
    few = study(seeds=3)
    assert arms_figure(only(few)) is not None
    assert arms_figure(only([run for run in few if run.seed == 0])) is None  # the lines show that seed
    write_results(tmp_path / "a.parquet", few)
    page = study_page(read_sections([tmp_path / "a.parquet"]))
    assert page.index("paper-composite-25-accuracy") < page.index("paper-composite-25-arms")
    assert page.count(", which for 3 seeds is at most their range, and far too narrow") == 3  # a picture and two tables
    assert "<summary>By length</summary>" not in page


def test_single_runs_whose_seeds_differ_are_said_to():
    told = caveats(*both(only([record("joint", 0, evaluation({75: 0.5})), record("dat", 5, evaluation({75: 0.9}))])))
    assert "The seeds differ too (joint has 0 and dat has 5)" in told
    assert "differ" not in caveats(*both(only(two(0.98, 0.25))))
    failed = [record(arm, 1, None, failure="x") for arm in ("joint", "dat")]
    assert "differ" not in caveats(*both(only([*two(0.98, 0.25), *failed])))


def both(panel):
    return panel, *comparisons([panel])


def test_a_headline_counts_the_arms_that_hold_where_they_are_many():
    records = [record(f"arm {i}", seed, evaluation({25: 1.0, 75: 0.95})) for i in range(5) for seed in range(2)]
    records += [record("falls", seed, evaluation({25: 1.0, 75: 0.1})) for seed in range(2)]
    assert headline(only(records)).endswith("At 90% or more: 5 of 6 arms.")
