"""The report of studies and runs: a page, figures and tables, from what they left on disk."""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from latebloom.errors import ConfigError
from latebloom.report.charts import save_chart
from latebloom.report.compared import comparison_tables, comparisons, switch_table
from latebloom.report.figures import all_figures
from latebloom.report.hypotheses import verdicts
from latebloom.report.page import Section, study_page
from latebloom.report.panel import Panel, panels
from latebloom.report.power import power_table
from latebloom.report.settings import choices_table, differences_table, tried_table
from latebloom.report.study_tables import accuracy_table, every_length_table, reach_table
from latebloom.report.tables import as_latex, as_markdown
from latebloom.report.words import caveats, headline
from latebloom.results.gather import gather
from latebloom.results.record import TUNING
from latebloom.results.selection import with_selections

FIGURE_FORMATS = ("svg", "pdf", "png")


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """Read results files and folders of studies and runs, and return a section for each panel."""
    records = with_selections(gather(paths))
    # Tuning runs become a table of their study; without the study they are reported like other runs.
    tuned = {(f"{record.study}{TUNING}", record.task) for record in records}
    found = panels([record for record in records if (record.study, record.task) not in tuned])
    names: dict[str, Panel] = {}
    for panel in found:
        stem = re.sub(r"[^a-z0-9]+", "-", f"{panel.study}-{panel.task}-{panel.training_length}".lower()).strip("-")[:80]
        # Two panels never share a file name.
        names[next(name for i in count(1) if (name := f"{stem}-{i}" if i > 1 else stem) not in names)] = panel
    sections = []
    for (name, panel), compared in zip(names.items(), comparisons(found), strict=True):
        tuning = [run for run in records if (run.study, run.task) == (f"{panel.study}{TUNING}", panel.task)]
        tables = {
            "accuracy": accuracy_table(panel),
            "reach": reach_table(panel),
            **comparison_tables(panel, compared),
            "switches": switch_table(panel),
            "differences": differences_table(panel),
            "choices": choices_table(panel, tuning) if tuning else None,
            "tried": tried_table(panel, tuning) if tuning else None,
            "power": power_table(panel, tuning) if tuning else None,
        }
        tables = {name: table for name, table in tables.items() if table is not None}
        text, figures = (headline(panel), caveats(panel, compared)), all_figures(panel, compared)
        of_study = [other for other in found if other.study == panel.study]
        hypotheses = verdicts(of_study) if panel is of_study[0] else None
        sections.append(Section(name, panel, *text, figures, tables, every_length_table(panel), hypotheses))
    return sections


def write_report(sections: Sequence[Section], out: Path) -> Path:
    """Write the page, and each figure and table into a file of its own; return the path of the page."""
    page = out / "index.html"
    try:
        for folder in (out / "figures", out / "tables"):
            folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            stated = {} if section.hypotheses is None else {"hypotheses": section.hypotheses.table}
            for name, table in (stated | section.tables).items():
                (out / "tables" / f"{section.name}-{name}.md").write_text(as_markdown(table))
                (out / "tables" / f"{section.name}-{name}.tex").write_text(as_latex(table))
        page.write_text(study_page(sections))
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written ({error.strerror})") from None
    for section in sections:
        for figure in section.figures:
            stem = f"{section.name}-{figure.name}"
            save_chart(figure.chart, *(out / "figures" / f"{stem}.{form}" for form in FIGURE_FORMATS))
    return page
