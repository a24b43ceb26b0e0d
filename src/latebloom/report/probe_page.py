"""The shortcut report: one page with the verdicts on the paper's mechanisms and the chart of every probe."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from latebloom.errors import ConfigError
from latebloom.probes.probe import Probe
from latebloom.probes.table import Chart
from latebloom.report.charts import Spec, save_chart
from latebloom.report.mechanisms import RULE, Verdict, compared_arms, verdicts
from latebloom.report.page import Page
from latebloom.report.probe_charts import draw
from latebloom.results.probe_runs import ProbeResults
from latebloom.results.probes import Probed

BESIDE = 2
"""From this many charts on, they stand side by side."""


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
    main = _add_chart(page, f"{stem}-{probe.name}", probe.chart, runs, arms)
    for number, chart in enumerate(probe.more):
        with page.fold(chart.title):
            _add_chart(page, f"{stem}-{probe.name}-more-{number}", chart, runs, arms)
    return main


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
