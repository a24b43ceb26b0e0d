"""Test a finished run: accuracy by length with 95% intervals, reach and cliff."""

import errno
import json
import warnings
from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_device, add_imports, integer
from latebloom.errors import ConfigError, Note

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="folder of the run")
    add("--lengths", metavar="LENGTHS", help="lengths to test, such as 25,50,100 or 25,50,...,400 (default: the run's)")
    add("--sequences", type=integer, metavar="N", help="sequences per length (default: the run's)")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="where to write the results; - for standard output (default: RUN/evaluation-FIRST-LAST-HASH.json)",
    )
    add_device(parser)
    add_imports(parser)
    parser.argument_hint = "give one run, and the lengths as one word, such as --lengths 25,50,100"


def run(options: Namespace) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from latebloom.config import short_hash
    from latebloom.engine.files import write_json
    from latebloom.engine.loop import TrainedRun
    from latebloom.lengths import parse_lengths
    from latebloom.report.study_tables import run_table
    from latebloom.report.tables import print_table
    from latebloom.report.terminal import say
    from latebloom.report.words import describe

    lengths, file = None if options.lengths is None else parse_lengths(options.lengths), options.json
    to_stdout = str(file) == "-"
    if file is not None and not to_stdout:
        _check_writable(file, options.run)
    trained = TrainedRun.load(options.run)
    notes = Console(stderr=True)
    with Progress(console=notes, transient=True, disable=not notes.is_terminal) as bars:
        bar = bars.add_task("testing", total=1.0)
        evaluation = trained.evaluate(
            lengths,
            sequences=options.sequences,
            device=options.device,
            progress=lambda share: bars.update(bar, completed=share),
        )
    console = notes if to_stdout else Console()
    print_table(console, run_table(evaluation))
    say(console, describe(evaluation))
    numbers = {"step": trained.result.get("steps", trained.config.training.steps)} | evaluation.to_json()
    if to_stdout:
        print(json.dumps(numbers, indent=2))
        return
    first, last = evaluation.lengths[0], evaluation.lengths[-1]
    file = file or options.run / f"evaluation-{first}-{last}-{short_hash(numbers)}.json"
    try:
        write_json(file, numbers)
    except OSError as error:
        if options.json is None and error.errno in READ_ONLY:
            told = f"{options.run} cannot be written ({error.strerror}), so the numbers are in no file"
            warnings.warn(f"{told}; name one with --json FILE", Note, stacklevel=2)
            return
        raise ConfigError(f"json: {file} cannot be written ({error.strerror})") from None
    say(console, f"Numbers: {file}")


def _check_writable(file: Path, run: Path) -> None:
    """Refuse a file that cannot be written, that is not an evaluation, or that is the run's own evaluation."""
    from latebloom.reading import read_json_file

    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(f"json: {file} is not a file that could be written")
    if file.exists():
        try:
            is_evaluation = {"training_length", "lengths"} <= read_json_file(file, follow=True).keys()
        except (OSError, ValueError, AttributeError):
            is_evaluation = False
        if not is_evaluation or file.resolve() == (run / "evaluation.json").resolve():
            found = "the run's own evaluation" if is_evaluation else "something else than an evaluation"
            raise ConfigError(f"json: {file} holds {found}; name another file")
