"""Write a page, figures and tables from results, without training anything."""

from argparse import Namespace
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
    add_out(parser, "folder for index.html, figures/ and tables/ (default: report)")
    add_imports(parser)


def run(options: Namespace) -> None:
    if not options.paths:
        raise ConfigError("report: give results files or folders of runs, such as results/paper.parquet or runs/mine")

    from rich.console import Console

    from latebloom.report.study import read_sections, write_report
    from latebloom.report.terminal import say, show_sections

    folder = options.out or Path("report")
    console = Console()
    with console.status("Making the report"):  # figures of a large study take half a minute
        sections = read_sections(options.paths)
        page = write_report(sections, folder)
    show_sections(console, sections)
    say(console, f"Page: {page}   Figures: {folder / 'figures'}   Tables: {folder / 'tables'}")
