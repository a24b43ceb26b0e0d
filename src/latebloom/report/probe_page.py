"""The shortcut report: one page with the verdicts on the paper's mechanisms and the chart of every probe."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from latebloom.engine.files import make_folder, write_file
from latebloom.errors import catch_write_errors, refuse_unwritable
from latebloom.probes.probe import Probe
from latebloom.report.charts import Spec, save_chart
from latebloom.report.mechanisms import RULE
from latebloom.report.page import Page
from latebloom.report.probe_section import ProbeSection, add_probe_section, probe_section
from latebloom.results.probe_runs import ProbeResults
from latebloom.results.probes import Probed

Key = tuple[str, str]
"""A study and a task."""


def probe_sections(
    results: ProbeResults, probes: Sequence[Probe], state_answers: Mapping[str, str | None]
) -> dict[Key, ProbeSection]:
    """Return what the probes say by study and task; `state_answers` has the answer that needs state for every task."""
    groups: dict[Key, dict[str, list[Probed]]] = {}
    for name, runs in results.tables.items():
        for run in runs:
            groups.setdefault((run.study, run.task), {}).setdefault(name, []).append(run)
    return {key: probe_section(tables, probes, state_answers.get(key[1])) for key, tables in groups.items()}


def write_page(sections: Mapping[Key, ProbeSection], results: ProbeResults, out: Path) -> Path:
    """Write index.html and the main chart of every probe as a picture; return the path of the page."""
    page = Page("Shortcut report")
    page.text(
        "What probes say of the mechanisms by which the paper explains delayed attention training, in these runs. Each "
        f"verdict is computed from the numbers below. {RULE} A number without an interval is that of one run."
    )
    pictures: dict[str, Spec] = {}
    for (study, task), section in sections.items():
        stem = re.sub(r"[^a-z0-9]+", "-", f"{study}-{task}".lower()).strip("-")
        heading = task if len({name for name, _ in sections}) == 1 else f"{study}: {task}"
        page.add(f'<section><h2 id="{stem}">{escape(heading)}</h2>')
        add_probe_section(page, stem, section)
        page.add("</section>")
        pictures |= section.pictures(stem)
    _add_skipped(page, results)
    with catch_write_errors(out), refuse_unwritable("out", out):
        make_folder(out)
        for name, chart in pictures.items():
            save_chart(chart, out / "figures" / f"{name}.svg", out / "figures" / f"{name}.png")
        write_file(out / "index.html", page.html().encode(errors="replace"))
    return out / "index.html"


def _add_skipped(page: Page, results: ProbeResults) -> None:
    lines = [
        f"{reason} ({len(runs)} run{'s' * (len(runs) > 1)}: {', '.join(runs[:3])}{', ...' * (len(runs) > 3)})"
        for reasons in results.skipped.values()
        for reason, runs in reasons.items()
    ]
    if lines:
        page.add("<h2>Not measured</h2>")
        page.add(f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>")
