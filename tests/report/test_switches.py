"""The table of moments: what each arm's switch costs against the best fixed one."""

import json
from dataclasses import replace

from synthetic import evaluation, record

from latebloom.report.compared import switch_table
from latebloom.report.panel import panels
from latebloom.report.study import read_sections, write_report
from latebloom.results.file import write_results


def run(arm, seed, step, accuracy, *, name="at_step", **otherwise):
    one = record(arm, seed, evaluation({25: 1.0, 75: accuracy, 400: accuracy / 2}), switch_step=step)
    return replace(one, config=json.dumps({"delay": {"until": {"name": name}}, "seed": seed, **otherwise}))


def study():
    fixed = [run(f"at {step}", seed, step, level) for step, level in ((2000, 0.5), (6000, 0.9)) for seed in (0, 1)]
    beyond = [run("when beyond", seed, 5000 + 500 * seed, 0.88, name="when_beyond") for seed in (0, 1)]
    joint = [record("joint", seed, evaluation({25: 1.0, 75: 0.2, 400: 0.1})) for seed in (0, 1)]
    return [*fixed, *beyond, *joint]


def test_an_arm_is_measured_against_the_best_fixed_switch():
    (panel,) = panels(study())
    table = switch_table(panel)
    assert table is not None
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert table.head[2:5] == ("3x (75)", "behind the best fixed, points", "steps later")
    assert "joint" not in rows  # it never switches
    assert rows["at 6000"][:3] == ["6,000", "90.0%", "the best fixed"]
    assert rows["at 2000"][:4] == ["2,000", "50.0%", "+40.0", "-4,000 (-27%)"]
    assert rows["when beyond"] == ["5,250", "88.0%", "+2.0", "-750 (-5%)", "44.0%", "+1.0", "-750 (-5%)"]


def test_arms_that_differ_in_more_than_the_moment_are_not_compared():
    apart = [run("slow", 0, 10, 0.5, rate=1), run("fast", 0, 20, 0.9, rate=2)]
    assert switch_table(panels(apart)[0]) is None
    (panel,) = panels(
        [*study(), run("at 4000, fast", 0, 4000, 1.0, rate=2), run("at 4000, fast", 1, 4000, 1.0, rate=2)]
    )
    table = switch_table(panel)
    assert table is not None
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert rows["when beyond"][2] == "+2.0"
    assert rows["at 4000, fast"][2] == "the best fixed"


def test_it_is_on_the_page_and_beside_it(tmp_path):
    write_results(tmp_path / "results.parquet", study())
    page = write_report(read_sections([tmp_path / "results.parquet"]), tmp_path / "report")
    assert "Switch step" in page.read_text()
    assert (tmp_path / "report" / "tables" / "paper-composite-25-switches.md").exists()
