"""One table, four ways to write it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from latebloom.report.tables import EMPTY, Cell, Table, as_html, as_latex, as_markdown, for_terminal, in_latex

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


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/]", "dat"])
def test_a_terminal_shows_names_as_they_are(name):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(for_terminal(Table(name, (name, "n"), ((Cell(name), Cell("1.0%", "0.5, 2.0")),))))
    assert capture.get().count(name) == 3
    assert "1.0% [0.5, 2.0]" in capture.get()
