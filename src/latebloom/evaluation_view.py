"""`latebloom evaluate`: test a finished run at other lengths."""

import json
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from latebloom.config import short_hash
from latebloom.engine.checkpoint import write_json
from latebloom.engine.loop import TrainedRun
from latebloom.errors import ConfigError
from latebloom.lengths import parse_lengths
from latebloom.report.study_tables import run_table
from latebloom.report.tables import print_table
from latebloom.report.terminal import say
from latebloom.report.words import describe


def evaluate_run(
    run: Path, lengths: str | None, *, sequences: int | None, json_file: Path | None, device: str | None
) -> None:
    """Test a run, print a table, and write the numbers into a file, or to standard output if the file is `-`."""
    chosen = None if lengths is None else parse_lengths(lengths)
    to_stdout = json_file is not None and str(json_file) == "-"
    if json_file is not None and not to_stdout:
        _check_writable(json_file, run)
    trained = TrainedRun.load(run)
    notes = Console(stderr=True)
    with Progress(console=notes, transient=True, disable=not notes.is_terminal) as bars:
        bar = bars.add_task("testing", total=1.0)
        evaluation = trained.evaluate(
            chosen, sequences=sequences, device=device, progress=lambda share: bars.update(bar, completed=share)
        )
    console = notes if to_stdout else Console()
    print_table(console, run_table(evaluation))
    say(console, describe(evaluation))
    numbers = {"step": trained.result.get("steps", trained.config.training.steps)} | evaluation.to_json()
    if to_stdout:
        print(json.dumps(numbers, indent=2))
        return
    first, last = evaluation.lengths[0], evaluation.lengths[-1]
    json_file = json_file or run / f"evaluation-{first}-{last}-{short_hash(numbers)}.json"
    try:
        write_json(json_file, numbers)
    except OSError as error:
        raise ConfigError(f"json: {json_file} cannot be written ({error.strerror})") from None
    say(console, f"Numbers: {json_file}")


def _check_writable(file: Path, run: Path) -> None:
    """Refuse a file that cannot be written, that is not an evaluation, or that is the run's own evaluation."""
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(f"json: {file} is not a file that could be written")
    if file.exists():
        try:
            is_evaluation = {"training_length", "lengths"} <= json.loads(file.read_text()).keys()
        except (OSError, ValueError, AttributeError):
            is_evaluation = False
        if not is_evaluation or file.resolve() == (run / "evaluation.json").resolve():
            found = "the run's own evaluation" if is_evaluation else "something else than an evaluation"
            raise ConfigError(f"json: {file} holds {found}; name another file")
