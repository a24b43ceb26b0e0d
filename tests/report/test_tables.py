"""One table, four renderers."""

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from latebloom import SequenceModel, hybrid, inspect
from latebloom.cli import main
from latebloom.commands.inspect import print_inspection
from latebloom.report.tables import (
    EMPTY,
    Cell,
    Table,
    as_html,
    as_latex,
    as_markdown,
    in_latex,
    print_table,
    text_table,
)

TABLE = Table(
    title="Accuracy & more",
    head=("arm", "3x (75)"),
    rows=((Cell("a_b|c <i> 50% $x$ #1 {y} ~^\\"), Cell("98.0%", "97.0, 99.0")), (Cell("dat"), EMPTY)),
    note="Mean over seeds",
)


def test_markdown_keeps_its_columns_whatever_the_names():
    lines = as_markdown(TABLE).splitlines()
    assert lines[0] == "**Accuracy &amp; more**"
    assert lines[2:5] == [
        "| arm | 3x (75) |",
        "| --- | ---: |",
        r"| a\_b\|c &lt;i&gt; 50% \$x\$ \#1 \{y\} \~^\\ | 98.0% [97.0, 99.0] |",
    ]
    assert lines[5] == "| dat | – |"


def test_latex_has_no_bare_special_letter():
    text = as_latex(TABLE)
    assert (
        r"a\_b\textbar{}c \textless{}i\textgreater{} 50\% \$x\$ \#1 \{y\} \textasciitilde{}\textasciicircum{}"
        r"\textbackslash{} & 98.0\% [97.0, 99.0] \\"
    ) in text
    assert r"dat & -- \\" in text
    assert r"\caption{Accuracy \& more. Mean over seeds}" in text
    for begin in ("table", "tabular"):
        assert text.count(rf"\begin{{{begin}}}") == text.count(rf"\end{{{begin}}}") == 1


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=40))
def test_latex_of_any_name_is_text(name):
    left = re.sub(r"\\(text(backslash|asciicircum|asciitilde|less|greater|bar)\{\}|[{}$&#%_])", "", in_latex(name))
    assert not set(left) & set("\\{}$&#%_^~<>|\n")


def test_html_marks_what_is_missing_and_escapes_the_rest():
    html = as_html(TABLE)
    assert "a_b|c &lt;i&gt; 50%" in html
    assert '<span class="interval">[97.0, 99.0]</span>' in html
    assert 'title="not measured"' in html


def printed(table: Table, width: int, is_terminal: bool = True) -> str:
    out = StringIO()
    print_table(Console(file=out, width=width, force_terminal=is_terminal, color_system=None), table)
    return out.getvalue()


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/]", "dat"])
@pytest.mark.parametrize("width", [18, 100])
def test_a_terminal_shows_names_as_they_are(name, width):
    text = printed(Table(name, (name, name), ((Cell(name), Cell("1.0%", "0.5, 2.0")),)), width)
    assert text.count(name) >= 3
    assert "1.0%" in text


ACCURACY = Table(
    "All answers right",
    ("arm", *(f"{n}x ({25 * n})" for n in range(1, 7))),
    tuple((Cell(arm), *(Cell(f"{n}.5%", f"{n}.0, {n}.9") for n in range(80, 86))) for arm in ("joint", "dat")),
)


@pytest.mark.parametrize(("width", "layout"), [(140, "intervals"), (70, "no intervals"), (44, "stacked")])
def test_a_terminal_gets_the_widest_layout_that_fits(width, layout):
    text = printed(ACCURACY, width)
    assert all(f"{n}.5%" in text for n in range(80, 86))
    assert ("[85.0, 85.9]" in text) is (layout != "no intervals")
    assert ("too narrow for the intervals" in text) is (layout == "no intervals")
    assert ("6x (150): 85.5% [85.0, 85.9]" in text) is (layout == "stacked")


@st.composite
def tables(draw):
    word = st.text(st.sampled_from("abcdefgh-(){},."), min_size=1, max_size=30)
    text = st.lists(word, min_size=1, max_size=12).map(" ".join)
    head = draw(st.lists(text, min_size=2, max_size=8))
    row = st.tuples(*(st.builds(Cell, text, st.sampled_from(["", "97.0, 99.0"])) for _ in head))
    rows = draw(st.lists(row, min_size=1, max_size=4))
    return Table(draw(text), tuple(head), tuple(rows), names=draw(st.integers(1, len(head))))


@given(tables(), st.sampled_from([44, 80, 120]))
def test_no_cell_is_cut_and_no_line_is_wider_than_the_terminal(table, width):
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = "".join(text.split())
    for row in table.rows:
        for cell in row:
            for word in cell.text.split():
                assert word in words


def test_a_log_has_no_edge():
    text = printed(Table("t", ACCURACY.head * 3, tuple(row * 3 for row in ACCURACY.rows)), 44, is_terminal=False)
    assert max(map(len, text.splitlines())) > 200
    assert text.count("[85.0, 85.9]") == 6


@pytest.mark.parametrize("width", [44, 80, 120])
def test_long_words_such_as_paths_are_not_broken_while_there_is_room(width):
    path = "model.layers.{0,2,...,46}.linear_attn"
    table = text_table("m", ("part", "kind", "what it is"), [(path, "recurrence", "gated delta rule " * 5)])
    assert path in printed(table, width)


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize(("words", "entry"), [(["list"], "composite"), (["study", "--list"], "holding")])
def test_lists_fit_the_terminal(words, entry, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    main(words)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert entry in " ".join(lines)


@pytest.mark.parametrize("width", [44, 80, 120])
def test_an_inspection_fits_the_terminal_and_cuts_no_word(width):
    inspection = inspect(SequenceModel(hybrid(width=8, blocks=12, heads=2), 11), horizon=False)
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    print_inspection(console, inspection, "random")
    assert max(map(len, out.getvalue().splitlines())) <= width
    for row in inspection.grouped():
        assert row.path in out.getvalue()
        assert row.class_name in out.getvalue()
