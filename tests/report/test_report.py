"""Charts, tables, sentences and the page, from evaluations alone."""

import re
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from latebloom import Evaluation, plot
from latebloom.errors import ConfigError
from latebloom.evaluation import Count
from latebloom.report.charts import accuracy_chart, guessing_levels
from latebloom.report.study_tables import run_table
from latebloom.report.tables import print_table
from latebloom.report.terminal import print_chart
from latebloom.report.words import compare, describe, describe_switch


def evaluation(levels: dict[int, float]) -> Evaluation:
    counts = tuple(
        Count(length, 1000, round(1000 * level), {"sum": round(1000 * level), "recall": 1000})
        for length, level in levels.items()
    )
    return Evaluation(25, counts, {"sum": 0.2, "recall": 1 / 32}, 0.2 / 32)


FALLS = evaluation({10: 1.0, 25: 1.0, 50: 0.45, 75: 0.25, 200: 0.2})
HOLDS = evaluation({10: 1.0, 25: 1.0, 50: 1.0, 75: 0.98, 200: 0.85})
BOTH = {"joint": FALLS, "dat": HOLDS}


@pytest.mark.parametrize(
    ("name", "magic"),
    [("a.png", b"\x89PNG"), ("a.svg", b"<svg"), ("a.pdf", b"%PDF"), ("sub/a.html", b"<!doctype html>")],
)
def test_a_plot_is_written_in_the_format_of_its_name(tmp_path, name, magic):
    path = plot(BOTH, tmp_path / name)
    assert magic in path.read_bytes()[:200]


def test_a_single_evaluation_can_be_plotted_and_bad_names_are_refused(tmp_path):
    assert plot(HOLDS, tmp_path / "one.svg").exists()
    with pytest.raises(ConfigError, match=r"plot: '.*a.gif' is not known; .*choices: \*.png, \*.svg, \*.pdf, \*.html"):
        plot(HOLDS, tmp_path / "a.gif")
    with pytest.raises(ConfigError, match="neither an evaluation nor a mapping"):
        plot([HOLDS], tmp_path / "a.png")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="plot: a is 'x', not an evaluation"):
        plot({"a": "x"}, tmp_path / "a.png")  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="no evaluation to draw"):
        plot({}, tmp_path / "a.png")
    with pytest.raises(ConfigError, match="cannot be written"):
        plot(HOLDS, "/proc/none/a.png")


def test_the_chart_has_a_line_a_run_the_marks_and_the_chance_level():
    spec = accuracy_chart(BOTH)
    text = str(spec)
    for label in ("trained up to 25", "3x", "guessing all: 0.6%", "all but the sum right: 20.0%"):
        assert label in text
    points = spec["datasets"]["points"]
    assert {(row["run"], row["length"]) for row in points} == {(n, c.length) for n, e in BOTH.items() for c in e.counts}
    assert "strokeDash" in text


def test_equal_lines_do_not_hide_each_other(tmp_path):
    svg = plot(dict.fromkeys(("joint", "dat", "third"), HOLDS), tmp_path / "a.svg").read_text()
    lines = re.findall(
        r'aria-roledescription="line mark" d="([^"]+)" stroke="([^"]+)".*?stroke-dasharray="([^"]+)"', svg
    )
    drawn, colors, dashes = zip(*lines, strict=True)
    assert len(set(drawn)) == 1
    assert len(set(colors)) == len(set(dashes)) == 3
    gaps = [dash.split(",")[1] != "0" for dash in dashes]
    assert gaps == [False, True, True]  # in the order of drawing: what lies below shows in the gaps of what lies above
    points = re.findall(r'aria-roledescription="point" transform="translate\(0,0\)" d="([^"]+)"', svg)
    widest = [max(map(float, re.findall(r"[\d.]+", path)[:2])) for path in points]  # a corner, from the middle
    assert len({re.sub(r"[\d.,-]", "", path) for path in points}) == 3
    assert widest == sorted(widest, reverse=True)
    assert all(above < 0.9 * below for below, above in pairwise(widest))


def test_lines_that_meet_in_the_terminal_take_turns(capsys):
    other = evaluation({10: 1.0, 25: 1.0, 40: 0.5})
    print_chart(Console(width=90), {"joint": HOLDS, "dat": HOLDS, "third": other})
    drawn = capsys.readouterr().out
    assert "oxox" in drawn
    assert "xox+" in drawn or "ox+o" in drawn
    assert "++" in drawn
    assert all(f" {length}" in drawn for length in (10, 25, 50, 75, 200))


@pytest.mark.parametrize("width", [44, 80, 120])
def test_the_table_of_a_run_shows_every_length_at_every_width(width):
    out = StringIO()
    print_table(Console(file=out, width=width, force_terminal=True, color_system=None), run_table(FALLS))
    interval = r"(?: \[22\.3, 27\.8\])?" if width == 44 else r" \[22\.3, 27\.8\]"
    assert re.search(rf"3x \(75\) +25\.0%{interval} +25\.0% +100\.0% +1000", out.getvalue())
    assert re.search(r"guessing +0\.6% +20\.0% +3\.1%", out.getvalue())
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "…" not in out.getvalue()


def test_the_terminal_chart_shows_both_lines_and_the_lengths(capsys):
    console = Console(width=90)
    print_chart(console, BOTH)
    drawn = capsys.readouterr().out
    assert "o joint" in drawn
    assert "x dat" in drawn
    rows = drawn.splitlines()
    assert next(i for i, row in enumerate(rows) if "x" in row and "│" in row) < next(
        i for i, row in enumerate(rows) if row.rstrip().endswith("o│") or "oooo" in row
    )
    assert all(f" {length}" in drawn for length in (10, 25, 50, 75, 200))


@pytest.mark.parametrize(
    ("joint", "dat", "words"),
    [
        (FALLS, HOLDS, "On this seed the delay made the difference"),
        (HOLDS, HOLDS, "Joint training did as well as delayed attention here"),
        (FALLS, evaluation({25: 1.0, 75: 0.6}), "helped, but is below 90%: this is not the expected result"),
        (FALLS, FALLS, "did not help, and is below 90%: this is not the expected result"),
        (evaluation({25: 0.3, 75: 0.1}), HOLDS, "did not learn the training length"),
        (evaluation({25: 1.0, 75: 0.7}), HOLDS, "holds, and joint training falls short"),
    ],
)
def test_the_sentence_says_what_the_numbers_say(joint, dat, words):
    sentence = compare(joint, dat, 1400)
    assert words in sentence
    assert f"{joint.accuracy(75):.1%} of them" in sentence
    assert f"until step 1400 on {dat.accuracy(75):.1%}" in sentence


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (FALLS, "reach: 1x (length 25)   cliff: 45% at 50"),
        (HOLDS, "reach: 3x (length 75)   cliff: none"),
        (
            evaluation({25: 0.95}),
            "reach: 1x (length 25, the longest tested)   cliff: not tested; it needs the training length and one up to "
            "twice it",
        ),
        (
            evaluation({25: 0.2, 50: 0.1}),
            "reach: none (below 90% at length 25, the shortest tested)   cliff: none",
        ),
        (
            evaluation({10: 0.5, 25: 1.0, 50: 0.2}),
            "reach: none (below 90% at length 10, the shortest tested)   cliff: 20% at 50",
        ),
    ],
)
def test_a_run_in_a_sentence(seen, words):
    assert describe(seen) == words


@pytest.mark.parametrize(
    ("untrained", "withheld", "why"),
    [
        (False, (), ""),
        (True, (), " The loss jumps there, because attention is untrained."),
        (False, ("recall",), " The loss jumps there, because the recall loss starts at the switch."),
        (
            True,
            ("a", "b"),
            " The loss jumps there, because attention is untrained and the a and b loss starts at the switch.",
        ),
    ],
)
def test_the_switch_in_a_sentence_says_why_the_loss_jumps(untrained, withheld, why):
    said = describe_switch(900, "step 900 was reached", hold="bypass", untrained=untrained, withheld=withheld)
    assert said == f"Attention was enabled at step 900: step 900 was reached.{why}"
    said = describe_switch(900, "step 900 was reached", hold="none", untrained=False, withheld=("recall",))
    assert said.startswith(
        "Attention was enabled from the start; the switch was at step 900: step 900 was reached. The loss"
    )


def test_only_answers_with_one_query_have_a_level_of_guessing_them_alone():
    count = Count(25, 10, 5, {"parity": 60, "recall": 5}, {"parity": 12})
    levels = guessing_levels(Evaluation.of(25, (count,), {"parity": 0.5, "recall": 0.25}))
    assert levels == {"guessing all": 0.5**12 * 0.25, "all but the recall right": 0.25}
