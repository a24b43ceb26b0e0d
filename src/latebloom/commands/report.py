"""Write a page, figures and tables from results, without training anything."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from latebloom.arguments import Parser, add_imports, add_out
from latebloom.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="results files, folders of studies, and folders of runs, which are compared as arms",
    )
    add_out(
        parser,
        "folder for index.html, figures/ and tables/ (default: report in the folder PATH; of a file, or of several "
        "PATHs, report in the current folder)",
    )
    add_imports(parser)


def default_folder(paths: Sequence[Path]) -> Path:
    """Return where the report of these paths goes: beside the results of one folder, as `latebloom study` does."""
    return paths[0] / "report" if len(paths) == 1 and paths[0].is_dir() else Path("report")


def run(options: Namespace) -> None:
    if not options.paths:
        raise ConfigError("report: give results files or folders of runs, such as results/paper.parquet or runs/mine")

    from rich.console import Console

    from latebloom.report.study import read_sections, write_report
    from latebloom.report.terminal import say, show_sections

    folder = options.out or default_folder(options.paths)
    console = Console()
    with console.status("Making the report"):  # figures of a large study take half a minute
        sections = read_sections(options.paths)
        page = write_report(sections, folder)
    show_sections(console, sections)
    say(console, f"Page: {page}   Figures: {folder / 'figures'}   Tables: {folder / 'tables'}")
