"""The page of a report: what was seen, the pictures, the tables, and every run with what it takes to repeat it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from latebloom.report.arms import is_crowded
from latebloom.report.figures import Figure
from latebloom.report.page import Page
from latebloom.report.panel import Panel
from latebloom.report.study_tables import if_few
from latebloom.report.tables import Table, as_html
from latebloom.results.record import RunRecord

MOST_ROWS = 15
"""A longer table is folded."""
MOST_IN_A_BROWSER = 2**53
"""Whole numbers beyond this are rounded when a browser reads JSON."""
CURVES_NOTE = (
    "A line a seed. Dashed upright lines: the switch, which ends the delay. Accuracy is held out, and counts an "
    "answer also while training does not ask for it yet."
)


@dataclass(frozen=True)
class Section:
    """All that is said of one panel."""

    name: str
    """For files and for elements of the page: letters, digits and dashes."""
    panel: Panel
    seen: str
    doubt: str
    """How far the seeds bear out what was seen."""
    main: Figure | None
    """None if no run has finished."""
    arms: Figure | None
    """Every seed near and far; None where the main picture has all of them."""
    effects: Figure | None
    """Where the study says what its arms are held against."""
    answers: list[Figure]
    curves: list[Figure]
    tables: dict[str, Table]
    every_length: Table

    @property
    def figures(self) -> list[Figure]:
        return [*(figure for figure in (self.arms, self.effects, self.main) if figure), *self.answers, *self.curves]


def study_page(sections: Sequence[Section]) -> str:
    """Everything as one page: what was seen, the pictures, the tables, the runs."""
    studies = list(dict.fromkeys(section.panel.study for section in sections))
    runs = [run for section in sections for run in section.panel.runs]
    page = Page(", ".join(studies))
    page.text(_provenance(runs), "note")
    if len(sections) > 1:
        links = (
            f'<li><a href="#{section.name}">{escape(_heading(section, studies))}</a>: {escape(section.seen)}</li>'
            for section in sections
        )
        page.add(f"<nav><ul>{''.join(links)}</ul></nav>")
    for section in sections:
        _add_section(page, section, studies)
    _add_runs(page, runs)
    return page.html()


def _provenance(runs: Sequence[RunRecord]) -> str:
    """How much was run, and with what."""
    done = sum(run.evaluation is not None for run in runs)
    versions = list(dict.fromkeys(run.versions for run in runs if run.versions))
    made = f" Made with {'; '.join(versions)}." if versions else ""
    return f"{done} of {len(runs)} runs finished.{made}"


def _heading(section: Section, studies: list[str]) -> str:
    return section.panel.title if len(studies) == 1 else f"{section.panel.study}: {section.panel.title}"


def _add_section(page: Page, section: Section, studies: list[str]) -> None:
    panel = section.panel
    page.add(f'<section><h2 id="{section.name}">{escape(_heading(section, studies))}</h2>')
    page.text(section.seen, "seen")
    page.text(section.doubt, "note")
    folded = is_crowded(panel)  # so many lines are for those who look for one
    if not folded:
        _add_main(page, section)
    for figure in (section.arms, section.effects):
        if figure is not None:
            page.chart(f"{section.name}-{figure.name}", figure.chart, titled=False)
            page.text(figure.note, "note")
    if folded:
        page.add('<details class="more"><summary>By length</summary>')
        _add_main(page, section)
        page.add("</details>")
    if panel.failures:
        failed = "; ".join(f"{run.arm}, seed {run.seed}: {run.failure}" for run in panel.failures)
        page.text(f"Runs that did not finish, and are missing everywhere: {failed}.", "note")
    told: set[str] = set()
    for name, heading in (
        ("accuracy", "Accuracy"),
        ("reach", "Reach and cliff"),
        ("effects", "What each change does"),
        ("effects-far", "What each change does far out"),
        ("compared", "Arms compared"),
        ("compared-far", "Arms compared far out"),
        ("switches", "When attention comes in"),
        ("differences", "What the arms differ in"),
        ("choices", "How settings were chosen"),
        ("tried", "Every setting that was tried"),
    ):
        if name in section.tables:
            table = section.tables[name]
            folded = len(table.rows) > MOST_ROWS
            unfold = f'<details class="more"><summary>{len(table.rows)} rows</summary>'
            page.add(f"<h3>{heading}</h3>{unfold * folded}{as_html(table)}{'</details>' * folded}")
            if table.note not in told:  # what is compared near and far is explained once
                page.text(table.note, "note")
            told.add(table.note)
    page.add(f'<details class="more"><summary>Every tested length</summary>{as_html(section.every_length)}</details>')
    for heading, figures, note in (
        ("Each answer alone", section.answers, ""),
        ("Training curves", section.curves, CURVES_NOTE),
    ):
        if figures:
            page.add(f'<details class="more"><summary>{heading}</summary><div class="charts">')
            for figure in figures:
                page.chart(f"{section.name}-{figure.name}", figure.chart)
            page.add("</div>")
            page.text(note, "note")
            page.add("</details>")
    page.add("</section>")


def _add_main(page: Page, section: Section) -> None:
    if section.main is not None:
        page.chart(f"{section.name}-{section.main.name}", section.main.chart, titled=False)  # the heading says it
        page.text(_caption(section.panel), "note")


def _caption(panel: Panel) -> str:
    sequences = sorted({count.sequences for one in panel.evaluations for count in one.counts})
    tested = f"{sequences[0]:,}" if len(sequences) == 1 else f"{sequences[0]:,} to {sequences[-1]:,}"
    if panel.is_single:
        return f"One seed: there are no error bars. {tested} sequences a length. Points are tested lengths."
    narrow = if_few(panel) or ", somewhat too narrow for fewer than about ten"
    return (
        f"Means over seeds; a band is a 95% bootstrap interval over seeds{narrow}. "
        f"{tested} sequences a length and seed. Points are tested lengths."
    )


def _add_runs(page: Page, runs: Sequence[RunRecord]) -> None:
    page.add('<h2 id="runs">Runs</h2><p class="note">Every run, its configuration and the command that repeats it.</p>')
    page.add(
        '<div class="search"><input id="search" type="search" placeholder="Search names, settings, versions" '
        'aria-label="Search the runs"><small id="count" aria-live="polite"></small></div>'
    )
    for run in runs:
        page.add(_run(run))


def _run(run: RunRecord) -> str:
    facts = [f"seed {run.seed}"]
    if run.evaluation is None:
        facts.append(f"failed: {run.failure}")
    else:
        far = run.evaluation.lengths[-1]
        facts += [f"reach {run.evaluation.reach:.3g}x", f"{run.evaluation.accuracy(far):.1%} at {far}"]
    if run.switch_step is not None:
        facts.append(f"switch at {run.switch_step:,}")
    if run.steps is not None:
        facts.append(f"{run.steps:,} steps")
    if run.seconds is not None:
        together = f" for {run.stacked} runs at once" if (run.stacked or 1) > 1 else ""
        facts.append(f"{run.seconds:,.0f} s{together}")
    summary = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    about = ", ".join(
        text
        for text in (
            f"configuration {run.config_hash}",
            run.versions,
            run.machine,
            run.commit and f"commit {run.commit}",
        )
        if text
    )
    return (
        f'<details class="run"><summary><b>{escape(run.arm)}</b><span>{escape(run.study)}</span>'
        f"<span>{escape(run.task)}</span>{summary}</summary>"
        f'<p class="note">{escape(about)}</p>'
        '<button class="copy" type="button">Copy the command</button>'
        f'<pre class="command">{escape(run.command, quote=False)}</pre>'
        f"{_config(run)}</details>"
    )


def _config(run: RunRecord) -> str:
    """The configuration to read; where the command has it too, the page takes it from there when the run is opened."""
    start = run.command.find(run.config)
    if start >= 0 and _indented(run.config) is not None and run.seed <= MOST_IN_A_BROWSER:
        return f'<pre class="config" data-from="{start}" data-to="{start + len(run.config)}"></pre>'
    return f'<pre class="config">{escape(_indented(run.config) or run.config)}</pre>'


def _indented(text: str) -> str | None:
    """JSON laid out to be read; None if the text is none."""
    try:
        return json.dumps(json.loads(text), indent=2)
    except ValueError:
        return None
