"""The report of studies and runs: a page, figures and tables, from what they left on disk."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from latebloom.engine.files import make_folder, write_file
from latebloom.errors import DISK_IS_FULL, ConfigError, catch_write_errors, printable
from latebloom.reading import find_link
from latebloom.report.charts import save_chart
from latebloom.report.compared import comparison_tables, comparisons, switch_table
from latebloom.report.figures import all_figures
from latebloom.report.hypotheses import verdicts
from latebloom.report.losses import loss_changes_table, loss_table
from latebloom.report.page import Section, study_page
from latebloom.report.panel import Panel, panels
from latebloom.report.power import power_table
from latebloom.report.settings import choices_table, differences_table, tried_table
from latebloom.report.study_tables import accuracy_table, every_length_table, reach_table
from latebloom.report.tables import as_latex, as_markdown
from latebloom.report.vega import start_bundling
from latebloom.report.words import caveats, headline
from latebloom.results.gather import gather
from latebloom.results.probes import Probed, read_probes, split_paths, state_answer
from latebloom.results.record import TUNING, RunRecord
from latebloom.results.selection import with_selections

if TYPE_CHECKING:
    from latebloom.report.probe_section import ProbeSection

FIGURE_FORMATS = ("svg", "pdf", "png")
LONGEST_NAME = 80
"""Of a file."""


def read_sections(paths: Sequence[Path]) -> list[Section]:
    """Read results files and folders of studies and runs, and return a section for each panel."""
    paths, files = split_paths(paths)
    if files and not paths:
        raise ConfigError(f"report: {files[0]} has results of a probe; name the results or folders of its runs too")
    probed = read_probes(files)
    records = [_with_printable_names(record) for record in with_selections(gather(paths))]
    # Tuning runs become a table of their study; without the study they are reported like other runs.
    tuned = {(f"{record.study}{TUNING}", record.task) for record in records}
    found = panels([record for record in records if (record.study, record.task) not in tuned])
    names: dict[str, Panel] = {}
    for panel in found:
        names[_file_name(f"{panel.study}-{panel.task}-{panel.training_length}".lower(), names)] = panel
    sections = []
    for (name, panel), compared in zip(names.items(), comparisons(found), strict=True):
        tuning = [run for run in records if (run.study, run.task) == (f"{panel.study}{TUNING}", panel.task)]
        losses = {"loss": loss_table(panel), "loss-changes": loss_changes_table(panel)} if panel.has_losses else {}
        tables = {
            **losses,
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
        of_length = every_length_table(panel)
        sections.append(Section(name, panel, *text, figures, tables, of_length, hypotheses, _probed(panel, probed)))
    return sections


def _probed(panel: Panel, tables: Mapping[str, Sequence[Probed]]) -> "ProbeSection | None":
    """Return what probes say of the runs of a panel, under the names that these have in the report."""
    own: dict[str, list[Probed]] = {}
    for name, found in tables.items():
        # Two arms may have chosen the same settings; their runs are the same, and are probed once.
        known = {one.config_hash: one for one in found}
        own[name] = [replace(known[run.config_hash], arm=run.arm) for run in panel.runs if run.config_hash in known]
    own = {name: found for name, found in own.items() if found}
    if not own:
        return None
    from latebloom.probes import place_of
    from latebloom.probes.probe import Probe
    from latebloom.report.probe_section import probe_section

    probes = [Probe.named(name) for name in sorted(own, key=place_of)]
    return probe_section(own, probes, state_answer(panel.runs[0]))


def _with_printable_names(record: RunRecord) -> RunRecord:
    """Return a record whose names control neither a terminal nor a browser."""
    texts = {name: value for name, value in vars(record).items() if isinstance(value, str)}
    changed = {name: clean for name, text in texts.items() if (clean := printable(text, lines=True)) != text}
    return replace(record, **changed) if changed else record


def _file_name(text: str, taken: Collection[str]) -> str:
    """Return a name of letters, digits and dashes that is not taken, so that no text can name another folder."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-")[:LONGEST_NAME]
    return next(name for i in count(1) if (name := f"{stem}-{i}" if i > 1 else stem) not in taken)


def write_report(sections: Sequence[Section], out: Path) -> Path:
    """Write the page, and each figure and table into a file of its own; return the path of the page."""
    page = out / "index.html"
    if link := find_link(out, levels=1):
        raise ConfigError(f"out: {link}; a report is not written through links, choose another folder")
    start_bundling()
    with catch_write_errors(out):
        try:
            for folder in (out / "figures", out / "tables"):
                make_folder(folder)
            for section in sections:
                stated = {} if section.hypotheses is None else {"hypotheses": section.hypotheses.table}
                for name, table in (stated | section.tables).items():
                    write_file(out / "tables" / f"{section.name}-{name}.md", as_markdown(table).encode())
                    write_file(out / "tables" / f"{section.name}-{name}.tex", as_latex(table).encode())
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                raise
            raise ConfigError(f"out: {out} cannot be written ({error.strerror}); name a folder with --out") from None
        for section in sections:
            stems: list[str] = []
            for figure in section.figures:
                stems.append(_file_name(f"{section.name}-{figure.name}", stems))
                save_chart(figure.chart, *(out / "figures" / f"{stems[-1]}.{form}" for form in FIGURE_FORMATS))
            pictures = {} if section.probed is None else section.probed.pictures(f"{section.name}-probes")
            for stem, chart in pictures.items():
                save_chart(chart, *(out / "figures" / f"{stem}.{form}" for form in FIGURE_FORMATS))
        write_file(page, study_page(sections).encode(errors="replace"))  # last: it stands for the whole report
    return page
