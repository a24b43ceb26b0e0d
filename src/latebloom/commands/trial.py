"""Find out in minutes whether delayed attention helps your hybrid on your data, with short training runs."""

import sys
from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_out, integer, number, share


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="CONFIG|tiny",
        help="a config.json of a Transformers hybrid, a type such as qwen3_next, or a size",
    )
    add(
        "overrides",
        nargs="*",
        metavar="FIELD=VALUE",
        help="change a field of its configuration, such as hidden_size=256",
    )
    parser.option_hint = "fields of the model's configuration are written FIELD=VALUE, such as hidden_size=256"
    add(
        "--data", type=Path, action="append", required=True, metavar="FOLDER", help="text or code, or a prepared corpus"
    )
    add_out(parser, "folder of the trial (default: trial); a trial that was interrupted continues")
    add("--minutes", type=number, default=10.0, metavar="M", help="time limit in minutes (default: 10)")
    add("--seeds", type=integer, default=3, metavar="N", help="runs of each arm (default: 3)")
    add("--until", default="10%", metavar="WHEN", help="when attention is enabled, as in `lm train` (default: 10%%)")
    add(
        "--context",
        type=integer,
        default=0,
        metavar="N",
        help="tokens of a training window (default: that of the size)",
    )
    add("--batch", type=integer, default=0, metavar="N", help="windows of a batch (default: that of the size)")
    add("--learning-rate", type=number, default=0.0, metavar="RATE", help="for both arms (default: that of the size)")
    add(
        "--vocabulary",
        type=integer,
        default=0,
        metavar="N",
        help="size of the vocabulary (default: 1024 for tiny, else 4096)",
    )
    add(
        "--include", action="append", default=[], metavar="PATTERN", help="only files whose names match, such as '*.py'"
    )
    add(
        "--traces",
        type=share,
        default=0.15,
        metavar="SHARE",
        help="share of synthetic traces that is added to the training text, for the probes (default: 15%%; 0: none)",
    )
    add("--processes", type=integer, default=0, metavar="N", help="runs at once (default: two on a CPU, one on a GPU)")


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.engine.files import write_file
    from latebloom.errors import catch_write_errors
    from latebloom.lm.trial import Trial, run_trial
    from latebloom.lm.trial_page import TrialNumbers, change_table, describe_text, fewer_seeds, probes_table, trial_page
    from latebloom.lm.work import Work
    from latebloom.report.tables import print_table
    from latebloom.report.terminal import say

    settings = Trial(**{name: value for name, value in vars(options).items() if name not in ("data", "out")})
    out = options.out or Path("trial")
    with Work(visible=True) as work:
        found = run_trial(options.data, out, settings, work)
    said = found["recommendation"]
    if not found["evaluations"]["joint"]:
        say(Console(), f"{said['sentence']} {said['advice']}")
        return
    title = f"Trial of delayed attention: {Path(options.model).name} on {', '.join(path.name for path in options.data)}"
    with catch_write_errors(out):
        write_file(out / "index.html", trial_page(found, title, ["latebloom", *sys.argv[1:]]).encode())
    console, numbers = Console(), TrialNumbers(found)
    print_table(console, change_table(numbers))
    if numbers.probed:
        print_table(console, probes_table(numbers))
    say(console, describe_text(found))
    if fewer := fewer_seeds(found):
        say(console, fewer)
    say(console, f"{said['sentence']} {said['advice']}")
    say(console, f"Page: {out / 'index.html'}   Numbers: {out / 'trial.json'}")
