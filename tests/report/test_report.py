"""Charts, tables, sentences and the page, from evaluations alone."""

import re
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from latebloom import Evaluation, plot
from latebloom.errors import ConfigError
from latebloom.evaluation import Count
from latebloom.report.charts import accuracy_chart
from latebloom.report.page import comparison_page
from latebloom.report.tables import Cell, Table, for_terminal, length_table
from latebloom.report.terminal import answer_table, print_chart, show_table
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
    with pytest.raises(ConfigError, match="neither an evaluation nor a row of named ones"):
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


def text_of(*things, width=100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for thing in things:
        console.print(thing)
    console.file.close()
    return console.export_text()


def test_tables_show_every_length_with_its_interval():
    text = text_of(for_terminal(length_table(BOTH | {"other": evaluation({25: 0.5})})))
    assert re.search(r"75 .* 3x .* 25\.0% \[22\.3%, 27\.8%\] .* 98\.0% \[96\.9%, 98\.8%\] .* – ", text)
    text = text_of(answer_table(FALLS))
    assert re.search(r"75 .* 3x .* 0\.250 .* 0\.223 to 0\.278 .* 0\.250 .* 1\.000 .* 1000", text)
    assert re.search(r"guessing .* 0\.006 .* 0\.200 .* 0\.031", text)


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
        (HOLDS, HOLDS, "joint training did as well"),
        (FALLS, evaluation({25: 1.0, 75: 0.6}), "helped, but did not hold 90%: this is not the result hoped for"),
        (FALLS, FALLS, "did not help here, nor did it hold 90%: this is not the result hoped for"),
        (evaluation({25: 0.3, 75: 0.1}), HOLDS, "did not even learn the training length"),
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
        (FALLS, "holds 90% up to 25 (1x its training length of 25). It falls off a cliff: 45% at 50."),
        (HOLDS, "holds 90% up to 75 (3x its training length of 25) and is at 85% at 200."),
        (evaluation({25: 0.95}), "holds 90% up to 25 (1x its training length of 25), the longest tested."),
        (evaluation({25: 0.2}), "does not hold 90% at the shortest tested length (20% at 25)."),
        (
            evaluation({10: 0.5, 25: 1.0, 50: 0.2}),
            "does not hold 90% at the shortest tested length (50% at 10). It falls off a cliff: 20% at 50.",
        ),
    ],
)
def test_a_run_in_a_sentence(seen, words):
    assert describe("It", seen) == f"It {words}"


@pytest.mark.parametrize(
    ("untrained", "withheld", "why"),
    [
        (False, (), ""),
        (True, (), " The loss jumps there, because attention comes in untrained."),
        (False, ("recall",), " The loss jumps there, because recall is asked from then on."),
        (
            True,
            ("a", "b"),
            " The loss jumps there, because attention comes in untrained and a and b are asked from then on.",
        ),
    ],
)
def test_the_switch_in_a_sentence_says_why_the_loss_jumps(untrained, withheld, why):
    said = describe_switch(900, "step 900 was reached", hold="bypass", untrained=untrained, withheld=withheld)
    assert said == f"Attention was let in at step 900: step 900 was reached.{why}"
    said = describe_switch(900, "step 900 was reached", hold="none", untrained=False, withheld=("recall",))
    assert said.startswith(
        "Attention was in from the start; the switch was at step 900: step 900 was reached. The loss"
    )


HOSTILE = "</script><script>document.title='owned'</script>"


def page() -> str:
    return comparison_page(
        {"joint": FALLS, HOSTILE: HOLDS},
        title=f"Title {HOSTILE}",
        seen=f"Seen {HOSTILE}",
        notes=HOSTILE,
        settings={HOSTILE: {"x": HOSTILE}},
    )


def test_the_page_loads_nothing_from_elsewhere_and_shows_markup_as_text():
    class Links(HTMLParser):
        scripts = 0
        found: list[str | None] = []  # noqa: RUF012

        def handle_starttag(self, tag, attrs):
            self.scripts += tag == "script"
            self.found += [value for name, value in attrs if name in ("src", "href")]

    links = Links()
    links.feed(page())
    assert links.found == ["data:,"]
    assert links.scripts == 3


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_wide_table_is_whole_in_a_log_and_within_a_terminal(is_terminal):
    many = {f"an arm with a long name {number}": evaluation({25: 0.5}) for number in range(9)}
    out = StringIO()
    console = Console(file=out, width=80, force_terminal=is_terminal, color_system=None)
    show_table(console, length_table(many))
    widest = max(len(line) for line in out.getvalue().splitlines())
    assert (widest > 80) is not is_terminal
    assert all(name in out.getvalue() for name in many) is not is_terminal


@pytest.mark.parametrize("width", [70, 140])
def test_no_column_is_lost_in_a_narrow_terminal(width):
    rows = tuple((Cell(arm), *(Cell(f"{n}.5%", f"{n}.0, {n}.9") for n in range(80, 86))) for arm in ("joint", "dat"))
    table = Table("All answers right", ("arm", *(f"{n}x ({25 * n})" for n in range(1, 7))), rows)
    out = StringIO()
    show_table(Console(file=out, width=width, force_terminal=True, color_system=None), table)
    assert all(f"{n}.5%" in out.getvalue() for n in range(80, 86))
    assert ("[85.0, 85.9]" in out.getvalue()) is (width == 140)
    assert ("The intervals are in the report" in out.getvalue()) is (width == 70)
