"""What the probes say of some runs: the verdicts on the paper's mechanisms, and the charts of every probe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from latebloom.engine.interference import BEYOND
from latebloom.probes.interference import GradientInterference
from latebloom.probes.probe import Probe
from latebloom.probes.table import Chart
from latebloom.report.charts import Spec
from latebloom.report.mechanisms import Tables, Verdict, compared_arms, verdicts
from latebloom.report.page import Page
from latebloom.report.probe_charts import draw
from latebloom.report.statistics import mean_interval
from latebloom.report.study_tables import estimate_cell
from latebloom.report.tables import EMPTY, Cell, Table, as_html
from latebloom.results.probes import Probed

BESIDE = 2
"""From this many charts on, they stand side by side."""
ONCE = {
    "cosine": "cosine with / without attention",
    "norm_with": "norm with attention",
    "norm_without": "norm without",
    "alone_with": f"with attention, cosine with the recurrence alone at {BEYOND}x",
    "alone_without": "without, the same cosine",
}
"""The columns of the table of runs whose gradients were measured once, with their headings."""


@dataclass(frozen=True)
class Drawn:
    """The charts of one probe."""

    probe: Probe
    charts: tuple[tuple[Chart, tuple[Spec, ...]], ...]
    """The main chart and the further ones; each may be several pictures, or none if there is nothing to draw."""
    once: Table | None = None
    """The gradients of runs that were measured once."""
    runs_once: int = 0
    """The number of these runs."""


@dataclass(frozen=True)
class ProbeSection:
    """What the probes say of the runs of one task."""

    seeds: dict[str, int]
    """The number of seeds of each arm."""
    arms: Mapping[str, str]
    """The arms that the verdicts are about: joint training and delayed attention."""
    verdicts: Sequence[Verdict]
    others: Mapping[str, Sequence[Verdict]]
    """The verdicts about the same joint training and each further arm with a delay."""
    drawn: Sequence[Drawn]

    def pictures(self, stem: str) -> dict[str, Spec]:
        """Return the main charts by the names of their files."""
        return {
            name: spec
            for one in self.drawn
            for _, specs in one.charts[:1]
            for name, spec in _named(f"{stem}-{one.probe.name}", specs).items()
        }


def probe_section(tables: Tables, probes: Sequence[Probe], state_answer: str | None) -> ProbeSection:
    """Return what the tables of one task's runs say; `state_answer` is the answer that needs state tracking."""
    runs = [run for found in tables.values() for run in found]
    runs.sort(key=lambda run: run.training != "joint")  # the baseline is first in legends and among maps
    arms = list(dict.fromkeys(run.arm for run in runs))
    seeds = {arm: len({run.seed for run in runs if run.arm == arm}) for arm in arms}
    drawn = [_draw(probe, found, arms) for probe in probes if (found := tables.get(probe.name))]
    first, *more = compared_arms(tables)
    others = {pair["delayed"]: verdicts(tables, state_answer, pair) for pair in more}
    return ProbeSection(seeds, first, verdicts(tables, state_answer, first), others, drawn)


def _draw(probe: Probe, runs: Sequence[Probed], arms: Sequence[str]) -> Drawn:
    once: list[Probed] = []
    if isinstance(probe, GradientInterference):
        once = [run for run in runs if max(run.table.values("step")) < 0]
        runs = [run for run in runs if max(run.table.values("step")) >= 0]
    charts = (probe.chart, *probe.more) if runs else ()
    specs = tuple((chart, tuple(spec for _, spec in draw(chart, runs, arms))) for chart in charts)
    return Drawn(probe, specs, measured_once(once, arms) if once else None, len(once))


def measured_once(runs: Sequence[Probed], arms: Sequence[str]) -> Table:
    """Return the gradients of runs that were measured once, by arm and part of the loss."""
    rows: list[tuple[Cell, ...]] = []
    for arm in arms:
        records = [row for run in runs if run.arm == arm for row in run.table.records(layer="all")]
        for part in dict.fromkeys(row["part"] for row in records):
            of_part = [row for row in records if row["part"] == part]
            numbers = ([row[name] for row in of_part if row[name] is not None] for name in ONCE)
            means = (estimate_cell(mean_interval(values), ".3g") if values else EMPTY for values in numbers)
            rows.append((Cell(arm), Cell(part), *means))
    return Table("Gradients, measured once", ("arm", "part of the loss", *ONCE.values()), tuple(rows), names=2)


def add_probe_section(page: Page, stem: str, section: ProbeSection) -> None:
    """Add the verdicts and the charts to a page; `stem` begins the names of the charts."""
    seeds = (f"{arm}: {count} seed{'s' * (count > 1)}" for arm, count in section.seeds.items())
    page.text("; ".join(seeds) + ".")
    names = [
        f"{arm} ({kind} training)" if kind == "joint" else f"{arm} (delayed attention)"
        for kind, arm in section.arms.items()
    ]
    page.text(f"The verdicts are about {' and '.join(names)}.")
    for verdict in section.verdicts:
        page.add(f"<h3>{escape(verdict.mechanism)}: {verdict.word}</h3>")
        page.text(" ".join(verdict.sentences), "seen")
    for arm, found in section.others.items():
        with page.fold(f"The same with {arm}: {', '.join(verdict.word for verdict in found)}"):
            for verdict in found:
                page.text(str(verdict))
    for drawn in section.drawn:
        _add_probe(page, f"{stem}-{drawn.probe.name}", drawn)


def _add_probe(page: Page, stem: str, drawn: Drawn) -> None:
    page.add(f"<h3>{escape(drawn.probe.name)}</h3>")
    page.text((type(drawn.probe).__doc__ or "").strip().partition("\n")[0])
    if drawn.once is not None:
        count = f"{drawn.runs_once} run{'s' * (drawn.runs_once > 1)} without a record over training"
        page.text(
            f"{count}: measured once, after training. Means over seeds, for all layers together; the file "
            "interference.parquet has each layer. A cosine says little where one of the norms is near 0."
        )
        page.add(as_html(drawn.once))
    for number, (chart, specs) in enumerate(drawn.charts):
        name = stem if number == 0 else f"{stem}-more-{number - 1}"
        with page.fold(chart.title * (number > 0)):
            _add_chart(page, name, chart, specs)


def _add_chart(page: Page, name: str, chart: Chart, specs: Sequence[Spec]) -> None:
    if not specs:
        page.text("There is nothing to draw: no run has a number for this chart.")
        return
    if len(specs) >= BESIDE:
        page.add('<div class="charts">')
    for one, spec in _named(name, specs).items():
        page.chart(one, spec)
    if len(specs) >= BESIDE:
        page.add("</div>")
    page.text(chart.note)


def _named(name: str, specs: Sequence[Spec]) -> dict[str, Spec]:
    return {name if len(specs) == 1 else f"{name}-{number}": spec for number, spec in enumerate(specs)}
