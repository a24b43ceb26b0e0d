"""A report of studies and runs, from what they left behind: a page, pictures and tables."""

import re
from collections.abc import Sequence
from pathlib import Path

from latebloom.errors import ConfigError
from latebloom.report.arms import arms_figure, effects_figure
from latebloom.report.charts import save_chart
from latebloom.report.choices import choices_table, tried_table
from latebloom.report.compared import Compared, comparison_tables, comparisons
from latebloom.report.differences import differences_table
from latebloom.report.figures import accuracy_figure, answer_figures, curve_figures
from latebloom.report.panel import Panel, panels
from latebloom.report.study_page import Section, study_page
from latebloom.report.study_tables import accuracy_table, every_length_table, reach_table
from latebloom.report.switches import switch_table
from latebloom.report.tables import as_latex, as_markdown
from latebloom.report.words import doubt, headline
from latebloom.results.gather import gather
from latebloom.results.record import TUNING, RunRecord

FIGURE_FORMATS = ("svg", "pdf", "png")


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """What results files say, and the folders of studies and runs, panel by panel."""
    records = gather(paths)
    # Beside its study a choice is a table; alone its runs are like any.
    chosen_on = {(f"{record.study}{TUNING}", record.task) for record in records}
    tuning = [record for record in records if (record.study, record.task) in chosen_on]
    found = panels([record for record in records if (record.study, record.task) not in chosen_on])
    names: dict[str, None] = {}
    sections = []
    for panel, compared in zip(found, comparisons(found), strict=True):
        name = _file_name(f"{panel.study}-{panel.task}-{panel.training_length}", names)
        tried = [run for run in tuning if (run.study, run.task) == (f"{panel.study}{TUNING}", panel.task)]
        sections.append(_section(name, panel, compared, tried))
    return sections


def _section(name: str, panel: Panel, compared: Compared, tuning: list[RunRecord]) -> Section:
    tables = {"accuracy": accuracy_table(panel), "reach": reach_table(panel), **comparison_tables(panel, compared)}
    if (switches := switch_table(panel)) is not None:
        tables["switches"] = switches
    if (differences := differences_table(panel)) is not None:
        tables["differences"] = differences
    if tuning:
        tables["choices"] = choices_table(panel, tuning)
        tables["tried"] = tried_table(panel, tuning)
    return Section(
        name=name,
        panel=panel,
        seen=headline(panel),
        doubt=doubt(panel, compared),
        main=accuracy_figure(panel) if panel.shown else None,
        arms=arms_figure(panel),
        effects=effects_figure(panel, compared),
        answers=answer_figures(panel),
        curves=curve_figures(panel),
        tables=tables,
        every_length=every_length_table(panel),
    )


def write_report(sections: Sequence[Section], out: Path) -> Path:
    """The page, and beside it each figure and each table alone; returns the page's path."""
    page = out / "index.html"
    try:
        for folder in (out / "figures", out / "tables"):
            folder.mkdir(parents=True, exist_ok=True)
        for section in sections:
            for name, table in section.tables.items():
                (out / "tables" / f"{section.name}-{name}.md").write_text(as_markdown(table))
                (out / "tables" / f"{section.name}-{name}.tex").write_text(as_latex(table))
        page.write_text(study_page(sections))
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written ({error.strerror})") from None
    for section in sections:
        for figure in section.figures:
            stem = out / "figures" / f"{section.name}-{figure.name}"
            save_chart(figure.chart, *(stem.with_name(f"{stem.name}.{form}") for form in FIGURE_FORMATS))
    return page


def _file_name(text: str, taken: dict[str, None]) -> str:
    """A name for files that says what is in them and that no other has."""
    name = stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80]
    number = 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    taken[name] = None
    return name
