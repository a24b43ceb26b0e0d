"""Probe trained runs: what attention and the recurrence do in them, and what that says of the paper's explanation."""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from latebloom.arguments import Parser, add_device, add_imports, add_out
from latebloom.errors import ConfigError
from latebloom.probes import NAMES, load_probes, place_of


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="folders of runs, folders that contain runs, and folders of studies, whose arms are compared",
    )
    parser.add_argument(
        "--what", metavar="NAME,...", help=f"probes to run (default: {','.join(NAMES)}, and those of --import)"
    )
    add_out(
        parser,
        "folder for the tables, pictures and index.html (default: probes in the folder of the study that all RUNs are "
        "in, or else of the first RUN)",
    )
    add_device(parser)
    parser.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help="probe up to N runs of one shape at once (default: 128 on a GPU, 1 on a CPU)",
    )
    add_imports(parser)


def default_place(runs: Sequence[Path]) -> Path:
    """Return the folder of the study that several runs are in, whose report then shows them, or else the first one."""
    above = [[parent for parent in run.absolute().parents if (parent / "study.json").exists()] for run in runs]
    studies = {parents[0] if parents else None for parents in above}
    (study,) = studies if len(runs) > 1 and len(studies) == 1 else (None,)
    return runs[0] if study is None else Path(os.path.relpath(study))


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.probes.probe import Probe
    from latebloom.progress import probe_with_bar
    from latebloom.reading import find_link
    from latebloom.report.probe_page import probe_sections, write_page
    from latebloom.report.terminal import say, show_verdicts
    from latebloom.results.find_runs import find_runs
    from latebloom.results.probes import FOLDER

    if not options.runs:
        raise ConfigError("probe: give the folder of a run or of a study, such as runs/mine or studies/mechanism-tiny")
    load_probes()
    names = (
        sorted(Probe.choices(), key=place_of)
        if options.what is None
        else [name for name in options.what.split(",") if name]
    )
    probes = [Probe.named(name, "what") for name in dict.fromkeys(names)]
    if not probes:
        raise ConfigError(f"what: {options.what!r} names no probe; choices: {', '.join(Probe.choices())}")
    found = find_runs(options.runs)
    out = options.out or default_place(options.runs) / FOLDER
    if link := find_link(options.out or out.parent, levels=1):  # a link of that name is followed if the user names it
        raise ConfigError(f"out: {link}; probes are not written through links, choose another folder with --out")
    results = probe_with_bar(found, probes, out, device=options.device, at_once=options.at_once)
    answers = {one.task: one.config.task.state_answer for one in found}
    console = Console()
    with console.status("Making the page"):
        sections = probe_sections(results, probes, answers)
        page = write_page(sections, results, out)
    for (study, task), section in sections.items():
        say(console, f"{study}, {task}:")
        show_verdicts(console, section)
    for reasons in results.skipped.values():
        for reason, runs in reasons.items():
            say(console, f"Not measured in {len(runs)} of {len(found)} runs: {reason}.")
    say(console, f"Page: {page}   Tables: {out}/*.parquet   Pictures: {out / 'figures'}")
