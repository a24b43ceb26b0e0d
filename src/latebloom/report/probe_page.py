"""The shortcut report: one page with the verdicts on the paper's mechanisms and the chart of every probe."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from latebloom.engine.interference import BEYOND
from latebloom.errors import ConfigError
from latebloom.probes.interference import GradientInterference
from latebloom.probes.probe import Probe
from latebloom.probes.table import Chart
from latebloom.report.charts import Spec, save_chart
from latebloom.report.mechanisms import RULE, Verdict, compared_arms, verdicts
from latebloom.report.page import Page
from latebloom.report.probe_charts import draw
from latebloom.report.statistics import mean_interval
from latebloom.report.tables import EMPTY, Cell, Table, as_html
from latebloom.results.probe_runs import ProbeResults
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


def write_page(
    results: ProbeResults, probes: Sequence[Probe], state_answers: Mapping[str, str | None], out: Path
) -> Path:
    """Write index.html and the main chart of every probe as a picture; return the path of the page.

    `state_answers` has the answer that needs state tracking for every task.
    """
    page = Page("Shortcut report")
    groups = _groups(results)
    page.text(
        "What probes say of the mechanisms by which the paper explains delayed attention training, in these runs. Each "
        f"verdict is computed from the numbers below. {RULE} A number without an interval is that of one run."
    )
    pictures: dict[str, Spec] = {}
    for (study, task), tables in groups.items():
        runs = [run for found in tables.values() for run in found]
        runs.sort(key=lambda run: run.training != "joint")  # the baseline is first in legends and among maps
        arms = list(dict.fromkeys(run.arm for run in runs))
        stem = re.sub(r"[^a-z0-9]+", "-", f"{study}-{task}".lower()).strip("-")
        heading = task if len({name for name, _ in groups}) == 1 else f"{study}: {task}"
        page.add(f'<section><h2 id="{stem}">{escape(heading)}</h2>')
        seeds = {arm: len({run.seed for run in runs if run.arm == arm}) for arm in arms}
        page.text("; ".join(f"{arm}: {count} seed{'s' * (count > 1)}" for arm, count in seeds.items()) + ".")
        _add_verdicts(page, verdicts(tables, state_answers.get(task)), compared_arms(tables))
        for probe in probes:
            if found := tables.get(probe.name):
                pictures |= _add_probe(page, stem, probe, found, arms)
        page.add("</section>")
    _add_skipped(page, results)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "index.html").write_text(page.html())
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written ({error.strerror})") from None
    for name, chart in pictures.items():
        save_chart(chart, out / "figures" / f"{name}.svg", out / "figures" / f"{name}.png")
    return out / "index.html"


def all_verdicts(
    results: ProbeResults, state_answers: Mapping[str, str | None]
) -> dict[tuple[str, str], list[Verdict]]:
    """Return the verdicts by study and task."""
    return {key: verdicts(tables, state_answers.get(key[1])) for key, tables in _groups(results).items()}


def _groups(results: ProbeResults) -> dict[tuple[str, str], dict[str, list[Probed]]]:
    """Return the tables by study and task, and then by probe."""
    groups: dict[tuple[str, str], dict[str, list[Probed]]] = {}
    for name, runs in results.tables.items():
        for run in runs:
            groups.setdefault((run.study, run.task), {}).setdefault(name, []).append(run)
    return groups


def _add_verdicts(page: Page, found: Sequence[Verdict], arms: Mapping[str, str]) -> None:
    names = [
        f"{arm} ({kind} training)" if kind == "joint" else f"{arm} (delayed attention)" for kind, arm in arms.items()
    ]
    page.text(f"The verdicts are about {' and '.join(names)}.")
    for verdict in found:
        page.add(f"<h3>{escape(verdict.mechanism)}: {verdict.word}</h3>")
        page.text(" ".join(verdict.sentences), "seen")


def _add_probe(page: Page, stem: str, probe: Probe, runs: Sequence[Probed], arms: Sequence[str]) -> dict[str, Spec]:
    """Add the charts of a probe, and return its main ones by the names of their files."""
    page.add(f"<h3>{escape(probe.name)}</h3>")
    page.text((type(probe).__doc__ or "").strip().partition("\n")[0])
    if isinstance(probe, GradientInterference):
        once = [run for run in runs if max(run.table.values("step")) < 0]
        runs = [run for run in runs if max(run.table.values("step")) >= 0]
        if once:
            count = f"{len(once)} run{'s' * (len(once) > 1)} without a record over training"
            page.text(
                f"{count}: measured once, after training. Means over seeds, for all layers together; the file "
                "interference.parquet has each layer. A cosine says little where one of the norms is near 0."
            )
            page.add(as_html(measured_once(once, arms)))
        if not runs:
            return {}
    main = _add_chart(page, f"{stem}-{probe.name}", probe.chart, runs, arms)
    for number, chart in enumerate(probe.more):
        with page.fold(chart.title):
            _add_chart(page, f"{stem}-{probe.name}-more-{number}", chart, runs, arms)
    return main


def measured_once(runs: Sequence[Probed], arms: Sequence[str]) -> Table:
    """Return the gradients of runs that were measured once, by arm and part of the loss."""
    rows: list[tuple[Cell, ...]] = []
    for arm in arms:
        records = [row for run in runs if run.arm == arm for row in run.table.records(layer="all")]
        for part in dict.fromkeys(row["part"] for row in records):
            of_part = [row for row in records if row["part"] == part]
            numbers = ([row[name] for row in of_part if row[name] is not None] for name in ONCE)
            rows.append((Cell(arm), Cell(part), *map(_mean, numbers)))
    return Table("Gradients, measured once", ("arm", "part of the loss", *ONCE.values()), tuple(rows), names=2)


def _mean(values: Sequence[float]) -> Cell:
    if not values:
        return EMPTY
    found = mean_interval(values)
    if found.low is None or found.high is None:
        return Cell(f"{found.mean:.3g}")
    return Cell(f"{found.mean:.3g}", f"{found.low:.3g}, {found.high:.3g}")


def _add_chart(page: Page, name: str, chart: Chart, runs: Sequence[Probed], arms: Sequence[str]) -> dict[str, Spec]:
    drawn = draw(chart, runs, arms)
    if not drawn:
        page.text("There is nothing to draw: no run has a number for this chart.")
        return {}
    names = [name if len(drawn) == 1 else f"{name}-{number}" for number in range(len(drawn))]
    if len(drawn) >= BESIDE:
        page.add('<div class="charts">')
    for one, (_, spec) in zip(names, drawn, strict=True):
        page.chart(one, spec)
    if len(drawn) >= BESIDE:
        page.add("</div>")
    page.text(chart.note)
    return dict(zip(names, (spec for _, spec in drawn), strict=True))


def _add_skipped(page: Page, results: ProbeResults) -> None:
    lines = [
        f"{reason} ({len(runs)} run{'s' * (len(runs) > 1)}: {', '.join(runs[:3])}{', ...' * (len(runs) > 3)})"
        for reasons in results.skipped.values()
        for reason, runs in reasons.items()
    ]
    if lines:
        page.add("<h2>Not measured</h2>")
        page.add(f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>")
