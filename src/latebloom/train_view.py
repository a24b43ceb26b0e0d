"""Train one run in the terminal: notes before it, a progress bar, and a table with sentences after it."""

import sys
from pathlib import Path

from rich.console import Console

from latebloom.api import run_with_bar
from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.schedule import unfinished_warmups
from latebloom.report.study_tables import run_table
from latebloom.report.tables import print_table
from latebloom.report.terminal import say
from latebloom.report.words import describe, describe_switch


def train_one(config: RunConfig, folder: Path, device: str | None, track: str | None) -> None:
    """Train a run, or continue it, and print how accurate it is at each length; a finished run is only printed."""
    console = Console()
    place = RunFolder(folder)
    was_finished = place.is_finished and place.read_config().hash == config.hash  # another hash extends the run
    if not was_finished:
        note_short_warmups(config)
    trained = run_with_bar(config, folder, device=device, track=track)
    if was_finished:
        say(console, f"{folder} is finished already; these are its results.")
    print_table(console, run_table(trained.evaluation))
    if trained.switch_step is not None and config.delay is not None:
        hold = config.delay.hold
        untrained = hold == "bypass" and not config.model.attention.zero_output
        reason, withheld = trained.result["switch_reason"], config.delay.withhold
        say(console, describe_switch(trained.switch_step, reason, hold=hold, untrained=untrained, withheld=withheld))
    say(console, describe(trained.evaluation))
    say(console, f"Everything is in {folder}")


def note_short_warmups(config: RunConfig) -> None:
    """Print a note for each phase that ends before its learning rate has warmed up."""
    for sentence in unfinished_warmups(config.training, config.delay):
        print(f"Note: {sentence}.", file=sys.stderr)
