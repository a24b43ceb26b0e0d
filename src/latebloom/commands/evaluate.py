"""Test a finished run: accuracy by length with 95% intervals, reach and cliff."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_device, add_imports, integer


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--lengths", metavar="LENGTHS", help="lengths to test, such as 25,50,100 or 25,50,...,400 (default: the run's)"
    )
    parser.add_argument("--sequences", type=integer, metavar="N", help="sequences per length (default: the run's)")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where to write the results; - for standard output (default: RUN/evaluation-FIRST-LAST-HASH.json)",
    )
    add_device(parser)
    add_imports(parser)
    parser.argument_hint = "give one run, and the lengths as one word, such as --lengths 25,50,100"


def run(options: Namespace) -> None:
    from latebloom.evaluation_view import evaluate_run

    evaluate_run(
        options.run,
        options.lengths,
        sequences=options.sequences,
        json_file=options.json,
        device=options.device,
    )
