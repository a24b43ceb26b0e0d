"""Train one run, or the same run with many seeds, or continue an interrupted run."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from latebloom.arguments import Parser, add_device, add_imports, add_out, add_overrides, integer
from latebloom.errors import ConfigError

if TYPE_CHECKING:
    from latebloom.config import RunConfig


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add_overrides(parser, "training.steps=500 or delay=none")
    add("--recipe", metavar="NAME", help="start from a recipe; `latebloom list recipe` shows them")
    add("--config", type=Path, metavar="FILE", help="start from a JSON file; - for standard input")
    add_out(parser, "folder of the run (default: runs/NAME-HASH); given alone, the run in it continues")
    add("--seed", type=integer, metavar="N", help="seed of weights and data, instead of the recipe's")
    add(
        "--seeds",
        type=integer,
        metavar="N",
        help="train N runs with consecutive seeds: as one program on a GPU, in one process per core on a CPU",
    )
    add_device(parser)
    add_imports(parser)
    add(
        "--track",
        metavar="tensorboard|wandb|trackio",
        help="send curves to a tracker while the run trains; each tracker is an extra to install",
    )
    add("--yes", action="store_true", help="train even if the run needs more memory than the machine has")
    add(
        "--dry-run",
        action="store_true",
        help="print the configuration as JSON, what would be trained and about how long it takes; train nothing",
    )


def run(options: Namespace) -> None:
    from dataclasses import replace

    from latebloom.config import OtherRun, with_overrides
    from latebloom.dry_run import show_run
    from latebloom.engine.environment import choose_device
    from latebloom.engine.memory import check_memory
    from latebloom.study import train_seeds

    config, name = _choose_config(options)
    if isinstance(config, OtherRun):
        raise ConfigError(_describe_other(options.out if options.config is None else None))
    if options.seed is not None:
        config = replace(config, seed=options.seed)
    config = with_overrides(config, options.overrides)
    if options.seeds is not None and options.track is not None:
        raise ConfigError(
            f"--track {options.track} and --seeds {options.seeds} exclude each other; trackers follow one run"
        )
    out = options.out or Path("runs") / f"{name}-{config.hash}{'' if options.seeds is None else '-seeds'}"
    if not options.yes:
        check_memory(config, choose_device(options.device))
    if options.dry_run:
        show_run(config, out, device=options.device, seeds=options.seeds)
    elif options.seeds is None:
        _train_one(config, out, options.device, options.track)
    else:
        _note_short_warmups(config)
        train_seeds(config, options.seeds, out, device=options.device)


def _choose_config(options: Namespace) -> "tuple[RunConfig, str]":
    """Return the configuration to start from and the name of the run."""
    from latebloom.config import load_config
    from latebloom.engine.folder import RunFolder
    from latebloom.recipes import recipe
    from latebloom.study import begun_seeds

    if options.recipe is not None and options.config is not None:
        raise ConfigError(f"--recipe {options.recipe} and --config {options.config} exclude each other; give one")
    if options.recipe is not None:
        return recipe(options.recipe), options.recipe
    if options.config is not None:
        return load_config(options.config), "run" if str(options.config) == "-" else options.config.stem
    if options.out is not None and options.out.exists():
        if options.seeds is None and (begun := begun_seeds(options.out)):
            config, options.seeds = begun
            return config, options.out.name
        return RunFolder(options.out).read_config(), options.out.name
    absent = "" if options.out is None else f"; there is no {options.out}"
    raise ConfigError(f"train: give --recipe NAME or --config FILE, or --out FOLDER of a run to continue{absent}")


def _describe_other(folder: Path | None) -> str:
    """Return what to do instead for a run that the engine does not train: a language model of a study."""
    import shlex

    from latebloom.engine.folder import RunFolder

    if folder is None:
        return "config: it is a language model of a study; `latebloom study` and `latebloom lm train` train those"
    run = RunFolder(folder)
    words = run.read_environment("command")["command"][1:] if run.environment_file.exists() else []
    command = f"latebloom {shlex.join(words)}" if words[:1] == ["study"] else "the command that began the study"
    return f"out: {folder} holds a language model of a study; continue with: {command}"


def _train_one(config: "RunConfig", folder: Path, device: str | None, track: str | None) -> None:
    """Train a run, or continue it, and print how accurate it is at each length; a finished run is only printed."""
    from rich.console import Console

    from latebloom.api import run_with_bar
    from latebloom.engine.folder import RunFolder
    from latebloom.report.study_tables import run_table
    from latebloom.report.tables import print_table
    from latebloom.report.terminal import say
    from latebloom.report.words import describe, describe_switch

    console, place = Console(), RunFolder(folder)
    was_finished = place.is_finished and place.read_config().hash == config.hash  # another hash extends the run
    if not was_finished:
        _note_short_warmups(config)
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


def _note_short_warmups(config: "RunConfig") -> None:
    """Print a note for each phase that ends before its learning rate has warmed up."""
    from latebloom.engine.schedule import unfinished_warmups

    for sentence in unfinished_warmups(config.training, config.delay):
        print(f"Note: {sentence}.", file=sys.stderr)
