"""Self-contained HTML pages: text, tables and charts in one file that loads nothing from the network."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template
from typing import TYPE_CHECKING

from latebloom.report.charts import Spec, chart_config
from latebloom.report.figures import Figure
from latebloom.report.hypotheses import Verdicts
from latebloom.report.panel import Panel
from latebloom.report.tables import Table, as_html
from latebloom.report.vega import vega_scripts
from latebloom.results.record import RunRecord

if TYPE_CHECKING:
    from latebloom.report.probe_section import ProbeSection

MOST_ROWS = 15
"""A table with more rows is folded."""
MOST_RUNS = 200
"""The details of more runs are compressed, and unpacked in the browser."""
MOST_IN_A_BROWSER = 2**53
"""JavaScript rounds larger integers."""


@dataclass(frozen=True)
class Section:
    """The report of one panel."""

    name: str
    """For file names and HTML ids: letters, digits and dashes."""
    panel: Panel
    headline: str
    caveats: str
    """How far the seeds support the headline."""
    figures: Sequence[Figure]
    tables: dict[str, Table]
    every_length: Table
    hypotheses: Verdicts | None = None
    """The hypotheses of the study, in the first of its sections."""
    probed: "ProbeSection | None" = None
    """What probes say of its runs, if they were probed."""


@dataclass
class Page:
    """A page under construction: HTML pieces, and the charts that its script draws."""

    title: str
    body: list[str] = field(default_factory=list)
    charts: dict[str, Spec] = field(default_factory=dict)
    packed: list[str] = field(default_factory=list)
    """HTML of runs that the page unpacks and shows as they are searched for."""

    def add(self, html: str) -> None:
        """Add HTML as it is. All other methods escape what they are given."""
        self.body.append(html)

    def text(self, text: str, kind: str = "note") -> None:
        self.add(f'<p class="{kind}">{escape(text)}</p>' if text else "")

    def chart(self, name: str, chart: Spec, titled: bool = True) -> None:
        """Add a chart as wide as its container. `name` is its id and the name of the file that it is saved as."""
        fitting = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        left_out = {"config"} if titled else {"config", "title"}  # the script sets the configuration of the theme
        self.charts[name] = {key: value for key, value in chart.items() if key not in left_out} | fitting
        self.add(f'<figure><div class="chart" id="{escape(name)}"></div></figure>')

    @contextmanager
    def fold(self, summary: str) -> Iterator[None]:
        """Put what is added within under a summary that unfolds it; without a summary it stands as it is."""
        self.add(f'<details class="more"><summary>{escape(summary)}</summary>' if summary else "")
        yield
        self.add("</details>" if summary else "")

    def html(self) -> str:
        """Return the whole page."""
        data = {"charts": self.charts, "config": {"light": chart_config(), "dark": chart_config(dark=True)}}
        vega, script = vega_scripts(), _asset("page.js")
        # Only these two scripts may run, and nothing may be loaded; Vega compiles its expressions (unsafe-eval).
        hashes = (b64encode(sha256(one.encode()).digest()).decode() for one in (vega, script))
        return Template(_asset("page.html")).substitute(
            allowed=" ".join(f"'sha256-{one}'" for one in hashes),
            title=escape(self.title),
            style=_asset("page.css"),
            body="\n".join(self.body),
            data=json.dumps(data).replace("<", "\\u003c"),  # cannot end the script element
            packed=_packed(self.packed) if self.packed else "",
            vega=vega,
            script=script,
        )


def _packed(texts: list[str]) -> str:
    packed = b64encode(gzip.compress(json.dumps(texts).encode(), mtime=0)).decode()
    return f'<script type="application/gzip" id="packed">{packed}</script>'


def chart_page(chart: Spec) -> str:
    """Return a page with nothing but a chart."""
    page = Page(chart["title"]["text"] or "Accuracy by length")
    page.chart("chart", chart, titled=False)
    return page.html()


def study_page(sections: Sequence[Section], title: str = "", intro: Sequence[str] = ()) -> str:
    """Return the report page: summary, figures, tables, and every run with the command that repeats it."""
    studies = list(dict.fromkeys(section.panel.study for section in sections))
    runs = [run for section in sections for run in section.panel.runs if not run.is_selected]
    page = Page(title or ", ".join(studies))
    for text in intro:
        page.text(text, "seen")
    done = sum(run.evaluation is not None for run in runs)
    versions = "; ".join(dict.fromkeys(run.versions for run in runs if run.versions))
    page.text(f"{done} of {len(runs)} runs finished.{f' Made with {versions}.' * bool(versions)}")
    panels = {section.name: section.panel for section in sections}
    headings = {name: f"{one.study}: {one.title}" if len(studies) > 1 else one.title for name, one in panels.items()}
    if len(sections) > 1:
        links = (f'<a href="#{one.name}">{escape(headings[one.name])}</a>: {escape(one.headline)}' for one in sections)
        page.add(f"<nav><ul>{''.join(f'<li>{link}</li>' for link in links)}</ul></nav>")
    for section in sections:
        if section.hypotheses is not None:
            _add_hypotheses(page, section.hypotheses)
    for section in sections:
        page.add(f'<section><h2 id="{section.name}">{escape(headings[section.name])}</h2>')
        _add_section(page, section)
        page.add("</section>")
    page.add('<h2 id="runs">Runs</h2>')
    page.text("Every run, its configuration and the command that repeats it.")
    page.add(
        '<div class="search"><input id="search" type="search" placeholder="Search names, settings, versions" '
        'aria-label="Search the runs"><small id="count" aria-live="polite"></small></div>'
    )
    if len(runs) <= MOST_RUNS:
        page.body += map(_run, runs)
    else:
        page.add('<div id="more-runs"></div>')
        page.packed = [_run(run) for run in runs]
    return page.html()


def _add_hypotheses(page: Page, hypotheses: Verdicts) -> None:
    page.add(f"<section><h2>{escape(hypotheses.table.title)}</h2>")
    for sentence in hypotheses.sentences:
        page.text(sentence, "seen")
    with page.fold(f"{len(hypotheses.table.rows)} predictions" * (len(hypotheses.table.rows) > MOST_ROWS)):
        page.add(as_html(hypotheses.table))
    page.text(hypotheses.table.note)
    page.add("</section>")


def _add_section(page: Page, section: Section) -> None:
    page.text(section.headline, "seen")
    page.text(section.caveats)
    is_main = {figure.name: figure.name in ("accuracy", "arms", "effects") for figure in section.figures}
    _add_figures(page, section.name, [figure for figure in section.figures if is_main[figure.name]])
    if failures := [run for run in section.panel.runs if run.evaluation is None]:
        failed = "; ".join(f"{run.arm}, seed {run.seed}: {run.failure}" for run in failures)
        page.text(f"Runs that did not finish, and are left out: {failed}.")
    explained = {""}
    for table in section.tables.values():
        page.add(f"<h3>{escape(table.title.partition(':')[0])}</h3>")
        with page.fold(f"{len(table.rows)} rows" * (len(table.rows) > MOST_ROWS)):
            page.add(as_html(table))
        page.text(table.note * (table.note not in explained))
        explained.add(table.note)
    with page.fold("Every tested length"):
        page.add(as_html(section.every_length))
    _add_figures(page, section.name, [figure for figure in section.figures if not is_main[figure.name]])
    if section.probed is not None:
        from latebloom.report.mechanisms import RULE
        from latebloom.report.probe_section import add_probe_section

        page.add(f'<h2 id="{section.name}-probes">Probes: {escape(section.panel.title)}</h2>')
        page.text(f"What probes say of the paper's mechanisms in these runs, computed from the numbers. {RULE}")
        add_probe_section(page, f"{section.name}-probes", section.probed)


def _add_figures(page: Page, name: str, figures: Sequence[Figure]) -> None:
    """Add figures with their captions; several of one fold stand side by side with one caption."""
    for fold, group in groupby(figures, key=lambda figure: figure.fold):
        together = list(group)
        with page.fold(fold):
            if side_by_side := bool(fold) and len(together) > 1:
                page.add('<div class="charts">')
            for figure in together:
                page.chart(f"{name}-{figure.name}", figure.chart, titled=side_by_side)
                page.text(figure.note * (not side_by_side))
            if side_by_side:
                page.add("</div>")
                page.text(together[0].note)


def _run(run: RunRecord) -> str:
    facts = [run.study, run.task, f"seed {run.seed}"]
    if run.evaluation is None:
        facts.append(f"failed: {run.failure}")
    else:
        far = run.evaluation.lengths[-1]
        facts += [f"reach {run.evaluation.reach:.3g}x", f"{run.evaluation.accuracy(far):.1%} at {far}"]
    facts += [] if run.switch_step is None else [f"switch at {run.switch_step:,}"]
    facts += [] if run.steps is None else [f"{run.steps:,} steps"]
    together = f" for {run.stacked} runs at once" if (run.stacked or 1) > 1 else ""
    facts += [] if run.seconds is None else [f"{run.seconds:,.0f} s{together}"]
    names = "".join(f"<span>{escape(text)}</span>" for text in facts)
    about = (f"configuration {run.config_hash}", run.versions, run.machine, run.commit and f"commit {run.commit}")
    return (
        f'<details class="run"><summary><b>{escape(run.arm)}</b>{names}</summary>'
        f'<p class="note">{escape(", ".join(text for text in about if text))}</p>'
        '<button class="copy" type="button">Copy the command</button>'
        f'<pre class="command">{escape(run.command, quote=False)}</pre>'
        f"{_config(run)}</details>"
    )


def _config(run: RunRecord) -> str:
    """Return the configuration, indented; if the command contains it, the page takes it from there when it is opened,
    because a large report would be twice the size."""
    text, start = run.config, run.command.find(run.config)
    with suppress(ValueError):
        text = json.dumps(json.loads(run.config), indent=2)
        if start >= 0 and run.seed <= MOST_IN_A_BROWSER:
            return f'<pre class="config" data-from="{start}" data-to="{start + len(run.config)}"></pre>'
    return f'<pre class="config">{escape(text)}</pre>'


def _asset(name: str) -> str:
    return (files("latebloom.report") / name).read_text()
