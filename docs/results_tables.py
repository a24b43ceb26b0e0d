"""What docs/results.md and the README say of the studies, from results/*.parquet.

python docs/results_tables.py            write it, and draw the pictures
python docs/results_tables.py --check    fail if a page says something else (a test does this)
"""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from figures import ROOT, write_or_check

from latebloom.evaluation.result import HOLDS_AT
from latebloom.report.arms import arms_figure
from latebloom.report.charts import save_chart
from latebloom.report.figures import accuracy_figure
from latebloom.report.panel import Panel, panels
from latebloom.report.statistics import compare_arms
from latebloom.report.study_tables import accuracy_cell, accuracy_table, p_value, points, reach_table
from latebloom.report.switches import switch_table
from latebloom.report.tables import Cell, Table, as_markdown
from latebloom.results.file import read_results
from latebloom.results.record import RunRecord

PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
TUNED = ROOT / "results" / "paper-tuning.parquet"
EXACT = 0.99
"""What the composite task is to be answered at, near and far."""
NEAR, FAR = 3, 16
"""The paper's claim, and ours, in training lengths."""


def read(study: str) -> list[Panel]:
    return panels(read_results([ROOT / "results" / f"{study}.parquet"]))


def at(panel: Panel, multiple: float) -> int:
    return round(multiple * panel.training_length)


# paper: every model on every task


def paper() -> str:
    parts = [f"{_made(read('paper'))}\n"]
    for panel in read("paper"):
        parts.append(f"### {panel.task}\n")
        parts.append(_with_note_once(accuracy_table(panel)))
        parts.append(_with_note_once(reach_table(panel)))
        parts.append(" ".join([_chosen(panel), _exact(panel), _ahead(panel, "dat", "joint")]) + "\n")
    return "\n".join(parts)


def tuning() -> str:
    """How every choice did on the held-out seeds, at three times the training length."""
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for panel in panels(read_results([TUNED])):
        for run in panel.runs:
            training = _config(run)["training"]
            row = found.setdefault((run.arm.partition(", ")[0], training["weigh"]), {})
            if run.evaluation is not None:
                row.setdefault(training["full"]["learning_rate"], []).append(run.evaluation.accuracy(at(panel, NEAR)))
    rates = sorted({rate for row in found.values() for rate in row})
    lines = [
        f"All answers right at {NEAR}x on each held-out seed, by rate and by what counts the same in the loss:",
        "",
        f"| arm | weighed by | {' | '.join(f'{rate:g}' for rate in rates)} |",
        "|---|---|" + "---|" * len(rates),
    ]
    for (arm, weigh), row in found.items():
        cells = (", ".join(f"{value:.1%}" for value in row.get(rate, [])) for rate in rates)
        lines.append(f"| {arm} | {weigh} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paper_in_short() -> str:
    panel = next(panel for panel in read("paper") if panel.task == "composite")
    return f"{as_markdown(accuracy_table(panel))}\n{_exact(panel)} {_ahead(panel, 'dat', 'joint')}"


def _exact(panel: Panel) -> str:
    told = []
    for arm in panel.shown:
        runs = panel.finished[arm].values()
        both = sum(all(run.accuracy(at(panel, multiple)) >= EXACT for multiple in (NEAR, FAR)) for run in runs)
        told.append(f"{both} of {len(runs)} ({arm})")
    held = [
        f"{sum(right >= HOLDS_AT for right in panel.by_seed(arm, at(panel, NEAR)).values())} ({arm})"
        for arm in panel.shown
    ]
    return (
        f"Seeds at {HOLDS_AT:.0%} or more at {NEAR}x: {', '.join(held)}. "
        f"Seeds at {EXACT:.0%} or more both at {NEAR}x and at {FAR}x: {', '.join(told)}."
    )


def _ahead(panel: Panel, first: str, second: str) -> str:
    """One arm less another at both distances, seed by seed."""
    told = []
    for multiple in (NEAR, FAR):
        one = compare_arms(first, second, *(panel.by_seed(arm, at(panel, multiple)) for arm in (first, second)))
        if one is not None:
            told.append(f"{points(one.difference).plain} points at {multiple}x (p {p_value(one.p)})")
    return f"{first} less {second}, seed by seed: {', '.join(told)}." if told else ""


def _chosen(panel: Panel) -> str:
    """What was chosen for each arm on held-out seeds."""
    told = []
    for arm in panel.shown:
        training = _config(next(run for run in panel.runs if run.arm == arm))["training"]
        weigh = f", weighed by {training['weigh']}" if len(panel.answers) > 1 else ""
        told.append(f"{arm} {training['full']['learning_rate']:g}{weigh}")
    return f"Chosen on held-out seeds: {'; '.join(told)}."


# timing: when to switch


def timing() -> str:
    parts = [f"{_made(read('timing'))}\n"]
    for panel in read("timing"):
        parts.append(f"### {panel.task}\n")
        if (switches := switch_table(panel)) is not None:
            parts.append(_with_note_once(switches))
        for arm in (arm for arm in panel.shown if arm.startswith("joint")):
            told = (f"{accuracy_cell(panel, arm, at(panel, m)).plain} at {m}x" for m in (NEAR, FAR))
            parts.append(f"- {arm}: {', '.join(told)}")
        parts.append("")
    return "\n".join(parts)


# holding: one change each


def holding() -> str:
    (panel,) = read("holding")
    parts = [f"{_made([panel])}\n", _with_note_once(_effects(panel))]
    for order in ("outcome", "pairs-first", "interleaved"):
        parts.append(f"- {order}: {_ahead(panel, f'dat ({order})', f'joint ({order})')}")
    return "\n".join([*parts, f"- digits-first, aligned: {_ahead(panel, 'dat', 'joint')}"])


def _effects(panel: Panel) -> Table:
    """Each arm's accuracy, and how far it is from the delay as it is."""
    rows = []
    for arm in panel.shown:
        cells = [Cell(arm)]
        for multiple in (NEAR, FAR):
            length = at(panel, multiple)
            against = compare_arms(arm, "dat", *(panel.by_seed(name, length) for name in (arm, "dat")))
            apart = arm == "dat" or against is None
            cells.append(accuracy_cell(panel, arm, length))
            cells.append(Cell("") if apart or against is None else points(against.difference))
            cells.append(Cell("") if apart or against is None else Cell(f"{against.dominance:+.2f}"))
        rows.append(tuple(cells))
    heads = (f"{multiple}x ({at(panel, multiple)})" for multiple in (NEAR, FAR))
    return Table(
        title=f"One change each: {panel.title}",
        head=("arm", *(text for head in heads for text in (head, "less dat, points", "Cliff's delta"))),
        rows=tuple(rows),
        note="Intervals: 95% bootstrap over seeds; differences are seed by seed. Cliff's delta is from -1 to 1.",
    )


# what all share


def _config(run: RunRecord) -> dict[str, Any]:
    return json.loads(run.config)


def _made(of: list[Panel]) -> str:
    """Where the numbers come from."""
    runs = [run for panel in of for run in panel.runs]
    configs = [_config(run) for run in runs]
    training = [config["training"] for config in configs]
    failed = sum(run.evaluation is None for run in runs)
    seeds = {len(panel.by_seed(arm, panel.training_length)) for panel in of for arm in panel.shown}
    (made,) = {(run.machine, run.versions, run.commit) for run in runs}
    machine, versions, commit = made
    return (
        f"`latebloom study {runs[0].study} --scale paper`: {len(runs)} runs"
        f"{f', of which {failed} failed' if failed else ''}, {_either(seeds)} seeds an arm, "
        f"width {_either(config['model']['width'] for config in configs)}, {_either(one['steps'] for one in training)} "
        f"steps in batches of {_either(one['full']['batch_size'] for one in training)}, trained up to length "
        f"{_either(run.training_length for run in runs)}; {machine}, {versions}, commit {(commit or '')[:12]}."
    )


def _either(numbers: Iterable[int]) -> str:
    return " or ".join(f"{number:,}" for number in sorted(set(numbers)))


_told: set[str] = set()


def _with_note_once(table: Table) -> str:
    """A note that stood under an earlier table of the page is not said again."""
    text = as_markdown(table)
    note = as_markdown(Table(title="", head=("",), rows=(), note=table.note)).splitlines()[-1] if table.note else ""
    if note and note in _told:
        return text.replace(f"\n{note}\n", "")
    _told.add(note)
    return text


def draw(study: str, image: Path) -> None:
    """The composite task's picture: lines by length, or the arms side by side where there are many."""
    panel = next(panel for panel in read(study) if panel.task == "composite")
    save_chart((arms_figure(panel) or accuracy_figure(panel)).chart, image)


def main() -> None:
    for study, text in (("paper", paper), ("timing", timing), ("holding", holding)):
        _told.clear()
        image = ROOT / "docs" / "images" / f"{study}.svg"
        results = ROOT / "results" / f"{study}.parquet"
        write_or_check(results, PAGE, text(), image, partial(draw, study, image))
    write_or_check(TUNED, PAGE, tuning())
    write_or_check(ROOT / "results" / "paper.parquet", README, paper_in_short())


if __name__ == "__main__":
    main()
