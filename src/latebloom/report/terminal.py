"""Results in a terminal: a chart of characters and tables."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from latebloom.evaluation.result import CLAIM, Evaluation

MARKS = (("o", "red"), ("x", "cyan"), ("+", "yellow"), ("*", "green"), ("#", "magenta"))


def print_chart(console: Console, evaluations: Mapping[str, Evaluation]) -> None:
    """Accuracy by length, drawn with characters."""
    import plotext as plt

    first = next(iter(evaluations.values()))
    plt.clear_figure()
    plt.theme("clear")
    plt.plot_size(min(console.width, 90), 20)
    legend = Text("all answers right, by length:")
    for (marker, color), (name, evaluation) in zip(MARKS, evaluations.items(), strict=False):
        counts = evaluation.counts
        plt.plot([c.length for c in counts], [100 * c.accuracy for c in counts], marker=marker, color=color)
        legend.append(f"   {marker} ").append(name, style=color)
    for multiple in (1, CLAIM):
        plt.vline(multiple * first.training_length, "gray")
    plt.hline(100 * first.chance_all, "gray")
    plt.xscale("log")
    plt.xticks(first.lengths, [str(length) for length in first.lengths])
    plt.ylim(0, 100)
    plt.yticks([0, 25, 50, 75, 100], ["0%", "25%", "50%", "75%", "100%"])
    console.print(legend)
    console.print(Text.from_ansi(plt.build()))
    console.print(
        f"upright lines: the training length {first.training_length} and {CLAIM}x; "
        f"level line: guessing, {first.chance_all:.1%}",
        style="dim",
        highlight=False,
    )


def say(console: Console, text: str) -> None:
    """A sentence: wrapped at words on a terminal, one line in a log."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


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
