"""Results in a terminal: a chart of characters and tables."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latebloom.evaluation.result import CLAIM, Evaluation
from latebloom.report.study_page import Section
from latebloom.report.tables import Table as Numbers
from latebloom.report.tables import for_terminal

PLAIN = str.maketrans("─│┌┐└┘├┤┬┴┼", "-|:::::::::")
"""Frames and rules for terminals that know no others; no sign of MARKS is among them."""
MARKS = (("o", "red"), ("x", "cyan"), ("+", "yellow"), ("*", "green"), ("#", "magenta"))


def print_chart(console: Console, evaluations: Mapping[str, Evaluation]) -> None:
    """Accuracy by length, drawn with characters; where lines meet, their characters take turns."""
    first = next(iter(evaluations.values()))
    lines = list(zip(cycle(MARKS), evaluations.values(), strict=False))
    legend = Text("all answers right, by length:")
    for ((marker, color), _), name in zip(lines, evaluations, strict=True):
        legend.append(f"   {marker} ").append(name, style=color)
    console.print(legend)
    # What is drawn last is seen whole, so that every line is drawn last once.
    width, plain = min(console.width, 90), not console.encoding.lower().startswith("utf")
    pictures = [_drawn([*lines[i + 1 :], *lines[: i + 1]], first, width, plain) for i in range(len(lines))]
    for rows in zip(*pictures, strict=True):
        merged = Text()
        for column, cells in enumerate(zip(*(row.plain for row in rows), strict=True)):
            seen = [i for i, (mark, _) in enumerate(lines) if cells[i] == mark[0]]
            merged.append_text(rows[seen[column % len(seen)] if seen else 0][column])
        console.print(merged)
    console.print(
        f"upright lines: the training length {first.training_length} and {CLAIM}x; "
        f"level line: guessing, {first.chance_all:.1%}",
        style="dim",
        highlight=False,
    )


def _drawn(
    lines: Sequence[tuple[tuple[str, str], Evaluation]], first: Evaluation, width: int, plain: bool
) -> list[Text]:
    """The rows of a chart with a line for each evaluation, later ones over earlier ones; the axes are the first's."""
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
    """A sentence: wrapped at words on a terminal, one line in a log."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def show_table(console: Console, table: Numbers) -> None:
    """A table: whole in a log, where nothing can be scrolled or resized; without its intervals on a terminal that is
    too narrow for them, so that no column is lost."""
    if not console.is_terminal:
        console = Console(file=console.file, width=1_000)
    whole = for_terminal(table)
    fits = console.measure(whole, options=console.options.update(width=1_000)).maximum <= console.width
    console.print(whole if fits else for_terminal(table, intervals=False))
    if not fits:
        console.print("The intervals are in the report: this terminal is too narrow for them.", style="dim")


def show_sections(console: Console, sections: Sequence[Section]) -> None:
    """What each study showed on each task: its table, and the sentences on it."""
    several, before = len({section.panel.study for section in sections}) > 1, None
    for section in sections:
        if several and section.panel.study != before:
            before = section.panel.study
            say(console, f"Study {before}")
        show_table(console, section.tables["accuracy"])
        say(console, f"{section.seen} {section.doubt}\n")


def answer_table(evaluation: Evaluation) -> Table:
    """One run: all answers with their interval, and each named answer."""
    table = Table(title="accuracy by length", title_justify="left", title_style="")
    for heading in ("length", "", "all right", "95% interval", *evaluation.chance, "sequences"):
        table.add_column(heading, justify="right")
    for count in evaluation.counts:
        low, high = count.interval
        each = [f"{count.accuracy_of(name):.3f}" for name in evaluation.chance]
        multiple = f"{count.length / evaluation.training_length:g}x"
        table.add_row(
            str(count.length),
            multiple,
            f"{count.accuracy:.3f}",
            f"{low:.3f} to {high:.3f}",
            *each,
            str(count.sequences),
        )
    guess = [f"{level:.3f}" for level in evaluation.chance.values()]
    table.add_row("guessing", "", f"{evaluation.chance_all:.3f}", "", *guess, "", style="dim")
    return table
