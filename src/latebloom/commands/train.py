"""Train one run, or the same run with many seeds, or continue an interrupted run."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from latebloom.arguments import Parser, add_device, add_imports, add_out, add_overrides, integer
from latebloom.errors import ConfigError

if TYPE_CHECKING:
    from latebloom.config import RunConfig


def add_arguments(parser: Parser) -> None:
    add_overrides(parser, "training.steps=500 or delay=null")
    parser.add_argument("--recipe", metavar="NAME", help="start from a named recipe; `latebloom list` shows them")
    parser.add_argument("--config", type=Path, metavar="FILE", help="start from a JSON file; - for standard input")
    add_out(parser, "folder of the run (default: runs/NAME-HASH); given alone, what is in it continues")
    parser.add_argument("--seed", type=integer, metavar="N", help="seed of weights and data, instead of the recipe's")
    parser.add_argument(
        "--seeds",
        type=integer,
        metavar="N",
        help="train N runs with consecutive seeds: as one program on a GPU, in one process per core on a CPU",
    )
    add_device(parser)
    add_imports(parser)
    parser.add_argument(
        "--track",
        metavar="tensorboard|wandb|trackio",
        help="send curves to a tracker while the run trains; each tracker is an extra to install",
    )

    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the configuration as JSON, what would be trained and about how long it takes; train nothing",
    )


def run(options: Namespace) -> None:
    from dataclasses import replace

    from latebloom.config import with_overrides
    from latebloom.dry_run import show_run
    from latebloom.seeds import train_seeds
    from latebloom.train_view import note_short_warmups, train_one

    config, name = _choose_config(options)
    if options.seed is not None:
        config = replace(config, seed=options.seed)
    config = with_overrides(config, options.overrides)
    if options.seeds is not None and options.track is not None:
        raise ConfigError(
            f"--track {options.track} and --seeds {options.seeds} exclude each other; trackers follow one run"
        )
    out = options.out or Path("runs") / f"{name}-{config.hash}{'' if options.seeds is None else '-seeds'}"
    if options.dry_run:
        show_run(config, out, device=options.device, seeds=options.seeds)
    elif options.seeds is None:
        train_one(config, out, options.device, options.track)
    else:
        note_short_warmups(config)
        train_seeds(config, options.seeds, out, device=options.device)


def _choose_config(options: Namespace) -> "tuple[RunConfig, str]":
    """Return the configuration to start from and the name of the run."""
    from latebloom.config import load_config
    from latebloom.engine.folder import RunFolder
    from latebloom.recipes import recipe
    from latebloom.seeds import begun_seeds

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
