"""Results in a terminal: a chart of characters, tables and sentences."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.page import Section
from latebloom.report.tables import print_table

if TYPE_CHECKING:
    from latebloom.report.probe_section import ProbeSection

PLAIN = str.maketrans("─│┌┐└┘├┤┬┴┼", "-|:::::::::")
"""Frames and rules in ASCII; no character of MARKS is among them."""
Mark = tuple[str, str]
MARKS: tuple[Mark, ...] = (("o", "red"), ("x", "cyan"), ("+", "yellow"), ("*", "green"), ("#", "magenta"))


def print_chart(console: Console, evaluations: Mapping[str, Evaluation]) -> None:
    """Draw accuracy by length with characters; where lines overlap, their characters alternate."""
    first = next(iter(evaluations.values()))
    lines = list(zip(cycle(MARKS), evaluations.values(), strict=False))
    legend = Text("all answers right, by length:")
    for ((marker, color), _), name in zip(lines, evaluations, strict=True):
        legend.append(f"   {marker} ").append(name, style=color)
    console.print(legend)
    # The line that is drawn last is complete, so the chart is drawn once for each line and then merged.
    width, plain = min(console.width, 90), not console.encoding.lower().startswith("utf")
    pictures = [_drawn([*lines[i + 1 :], *lines[: i + 1]], first, width, plain) for i in range(len(lines))]
    for rows in zip(*pictures, strict=True):
        merged = Text()
        for column, cells in enumerate(zip(*(row.plain for row in rows), strict=True)):
            seen = [i for i, (mark, _) in enumerate(lines) if cells[i] == mark[0]]
            merged.append_text(rows[seen[column % len(seen)] if seen else 0][column])
        console.print(merged)
    key = f"vertical lines: the training length {first.training_length} and {CLAIM}x; "
    key += f"horizontal line: guessing, {first.chance_all:.1%}"
    console.print(key, style="dim", highlight=False)


def _drawn(lines: Sequence[tuple[Mark, Evaluation]], first: Evaluation, width: int, plain: bool) -> list[Text]:
    """Return the rows of a chart with a line for each evaluation, later ones on top; the axes are those of `first`."""
    import plotext as plt

    plt.clear_figure()
    plt.theme("clear")
    plt.plot_size(width, 20)
    for (marker, color), evaluation in lines:
        counts = evaluation.counts
        plt.plot([c.length for c in counts], [100 * c.accuracy for c in counts], marker=marker, color=color)
    for multiple in (1, CLAIM):
        plt.vline(multiple * first.training_length, "gray")
    plt.hline(100 * first.chance_all, "gray")
    plt.xscale("log")
    plt.xticks(first.lengths, [str(length) for length in first.lengths])
    plt.ylim(0, 100)
    plt.yticks([0, 25, 50, 75, 100], ["0%", "25%", "50%", "75%", "100%"])
    return list(Text.from_ansi(plt.build().translate(PLAIN if plain else {})).split())


def say(console: Console, text: str) -> None:
    """Print a sentence: wrapped at words on a terminal, one line in a log."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def show_sections(console: Console, sections: Sequence[Section]) -> None:
    """Print the accuracy of each section, or the loss of language models, and the sentences about it."""
    studies = [section.panel.study for section in sections]
    for section, before in zip(sections, [None, *studies], strict=False):
        if section.panel.study != before and len(set(studies)) > 1:
            say(console, f"Study {section.panel.study}")
        if section.hypotheses is not None:
            for sentence in section.hypotheses.sentences:
                say(console, sentence)
        print_table(console, section.tables.get("loss", section.tables["accuracy"]))
        say(console, f"{section.headline} {section.caveats}\n")
        if section.probed is not None:
            show_verdicts(console, section.probed)


def show_verdicts(console: Console, probed: "ProbeSection") -> None:
    """Print the verdicts on the paper's mechanisms, and the words of those about further arms."""
    for verdict in probed.verdicts:
        say(console, f"{verdict}\n")
    for arm, found in probed.others.items():
        say(console, f"The same mechanisms with {arm}: {', '.join(verdict.word for verdict in found)}.\n")
