"""Train every run of a study and write its report; finished runs are kept and interrupted runs continue."""

import sys
from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_device, add_imports, add_out, integer
from latebloom.errors import ConfigError, require


def add_arguments(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE.py", help="a named study, or a Python file with your own")
    parser.add_argument("--list", action="store_true", help="show the named studies, or the given one, with their size")
    parser.add_argument(
        "--scale",
        choices=("tiny", "small", "paper", "large"),
        default="paper",
        help="seeds and steps: tiny takes minutes on two cores, small (not of every study) an hour or two; paper and "
        "large need a GPU (default: paper)",
    )
    parser.add_argument(
        "--seeds",
        type=integer,
        metavar="N",
        help="number of seeds, from the study's first one on, instead of the scale's",
    )
    add_out(parser, "folder of the study (default: studies/NAME-SCALE)")
    parser.add_argument(
        "--workers",
        type=integer,
        metavar="N",
        help="processes: one for each run on a CPU (default: one per core), one for each stack on a GPU (default: 4, "
        "or 1 for language models)",
    )
    add_device(parser)
    add_imports(parser)
    parser.add_argument(
        "--on",
        choices=("local", "ray"),
        default="local",
        help="train in processes on this machine, or on a Ray cluster (extra `ray`) (default: local)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of a Ray cluster; auto looks for one on this machine (default: start one here)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the arms, runs and steps and about how long they take here"
    )


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.dry_run import show_study
    from latebloom.study import list_all, read_plan, run_study

    if options.list:
        list_all(Console(), options.name)
        return
    if options.name is None:
        raise ConfigError("study: give a name or a Python file; `latebloom study --list` shows the names")
    if options.workers is not None:
        require(options.workers >= 1, "workers", options.workers, "1 or more")
    title, plan = read_plan(options.name, options.scale, options.seeds)
    folder = options.out or Path("studies") / f"{title}-{options.scale}"
    where = {"device": options.device, "workers": options.workers}
    if options.dry_run:
        show_study(title, plan, folder, **where)
    elif run_study(title, plan, folder, options.scale, on=options.on, address=options.address, **where).failures:
        sys.exit(1)
