"""The command line: latebloom demo | train | evaluate | inspect | study | report | bench | list."""

import re
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial, wraps
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from latebloom import __version__
from latebloom.errors import ConfigError, InterruptedRun, LatebloomError, full_disk_in_words, require
from latebloom.plugins import load_words
from latebloom.usage import changes_last, one_sentence

said = partial(arg, help_behavior_hint="")  # where the help's sentence says what happens without it, not "None"
Overrides = Annotated[Positional[tuple[str, ...]], said(metavar="FIELD=VALUE ...")]
Device = Annotated[str | None, said(metavar="cpu|cuda")]
Out = Annotated[str | None, said(metavar="FOLDER")]
Number = Annotated[int | None, said(metavar="NUMBER")]
Flag = Annotated[bool, said()]


def demo(overrides: Overrides = (), /, *, out: Out = None, seed: int = 0, device: Device = None) -> None:
    """Joint training and delayed attention side by side, in minutes: bars, chart, table, page.

    Args:
        overrides: Changes to both runs, such as training.steps=500.
        out: The folder for runs and pictures, demo or demo-seed-N unless given; finished runs in it are only shown.
        seed: Decides first weights and data.
        device: Where to train; CUDA where there is one.
    """
    from latebloom.demo import run_demo

    folder = _folder(out) or Path("demo" if seed == 0 else f"demo-seed-{seed}")
    try:
        run_demo(folder, seed=seed, device=device, overrides=overrides)
    except InterruptedRun as stop:
        raise InterruptedRun(f"{stop}; go on with: latebloom {shlex.join(sys.argv[1:])}") from None


def train(
    overrides: Overrides = (),
    /,
    *,
    recipe: Annotated[str | None, said(metavar="NAME")] = None,
    config: Annotated[Path | None, said(metavar="FILE")] = None,
    out: Out = None,
    seed: Number = None,
    seeds: Number = None,
    device: Device = None,
    track: Annotated[str | None, said(metavar="tensorboard|wandb|trackio")] = None,
) -> None:
    """Train one run, or the same run with many seeds, or go on with an interrupted one.

    Args:
        overrides: Changes to the configuration, such as training.steps=500 or delay=null.
        recipe: A named recipe; `latebloom list` shows them.
        config: A JSON file with a configuration; - for standard input.
        out: The run's folder; runs/NAME-HASH unless given. With --out alone, the run in it goes on.
        seed: Decides first weights and data; the configuration's unless given.
        seeds: So many runs, this seed and those after it, a folder each: one program on a GPU, else a process a core.
        device: Where to train; CUDA where there is one.
        track: Show the numbers while it goes on; each of these is an extra to install.
    """
    from latebloom.api import run_with_bar
    from latebloom.config import load_config, with_overrides
    from latebloom.engine.folder import RunFolder
    from latebloom.engine.schedule import unfinished_warmups
    from latebloom.recipes import recipe as named_recipe
    from latebloom.report.terminal import answer_table, say
    from latebloom.report.words import describe, describe_switch

    folder = _folder(out)
    if recipe is not None and config is not None:
        raise ConfigError(f"--recipe {recipe} and --config {config} exclude each other; give one")
    if recipe is not None:
        chosen, name = named_recipe(recipe), recipe
    elif config is not None:
        chosen, name = load_config(config), "run" if str(config) == "-" else config.stem
    elif folder is not None and folder.exists():
        chosen, name = RunFolder(folder).read_config(), folder.name
    else:
        absent = "" if folder is None else f"; there is no {folder}"
        raise ConfigError(f"train: give --recipe NAME or --config FILE, or --out FOLDER of a run to go on with{absent}")
    if seed is not None:
        chosen = replace(chosen, seed=seed)
    chosen = with_overrides(chosen, overrides)
    warmups = unfinished_warmups(chosen.training, chosen.delay)
    if seeds is not None:
        if track is not None:
            raise ConfigError(f"--track {track} and --seeds {seeds} exclude each other; trackers follow one run")
        from latebloom.seeds import train_seeds

        _note(warmups)
        train_seeds(chosen, seeds, folder or Path("runs") / f"{name}-{chosen.hash}-seeds", device=device)
        return
    folder = folder or Path("runs") / f"{name}-{chosen.hash}"
    console = Console()
    was_finished = RunFolder(folder).is_finished
    _note([] if was_finished else warmups)
    trained = run_with_bar(chosen, folder, device=device, track=track)
    if was_finished:
        say(console, f"{folder} is finished already; this is what it holds.")
    console.print(answer_table(trained.evaluation))
    if trained.switch_step is not None and chosen.delay is not None:
        hold = chosen.delay.hold
        untrained = hold == "bypass" and not chosen.model.attention.zero_output
        reason, withheld = trained.result["switch_reason"], chosen.delay.withhold
        say(console, describe_switch(trained.switch_step, reason, hold=hold, untrained=untrained, withheld=withheld))
    say(console, describe("The model", trained.evaluation))
    say(console, f"Everything is in {folder}")


def _note(sentences: list[str]) -> None:
    for sentence in sentences:
        print(f"Note: {sentence}.", file=sys.stderr)


def _folder(out: str | None) -> Path | None:
    """The folder that --out names; an empty word, as of a variable that is not set, would be this one."""
    if out is not None and not out.strip():
        raise ConfigError(f"out: {out!r} names no folder")
    return None if out is None else Path(out)


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
    *,
    lengths: Annotated[str | None, said(metavar="LENGTHS")] = None,
    sequences: Number = None,
    json_file: Annotated[Path | None, said(name="json", metavar="FILE")] = None,
    device: Device = None,
) -> None:
    """Accuracy by length of a finished run, with 95% intervals, reach and cliff.

    Args:
        run: The run's folder.
        lengths: Lengths to test, such as 25,50,100 or 25,50,...,400; those of the run unless given.
        sequences: How many sequences a length; as many as in the run unless given.
        json_file: Where to write the numbers; - for standard output, RUN/evaluation-FIRST-LAST-HASH.json unless given.
        device: Where to compute; CUDA where there is one.
    """
    from latebloom.evaluation_view import evaluate_run

    evaluate_run(run, lengths, sequences=sequences, json_file=json_file, device=device)


def inspect(path: Annotated[Positional[Path], arg(metavar="PATH")], /, *, no_horizon: Flag = False) -> None:
    """What a model is made of, what delayed attention would hold back, and how far its recurrence remembers.

    Args:
        path: A Transformers checkpoint folder or config.json; or a run's folder, checkpoint or model, of this package.
        no_horizon: Do not measure how far back a token is felt with attention left out.
    """
    from latebloom.inspect_view import print_inspection
    from latebloom.integrations.load_model import load_model
    from latebloom.probes.inspect import inspect as look_at

    console = Console()
    with console.status(Text(f"Looking at {path}")):  # half a minute for a large model
        model, weights = load_model(path)
        inspection = look_at(model, horizon=not no_horizon)
    print_inspection(console, inspection, weights)


def bench(
    *,
    out: Path = Path("bench.json"),
    device: Device = None,
    precision: Literal["tf32", "float32", "bf16"] = "tf32",
    seconds: float = 0.5,
    growth: Flag = False,
    hundred_seeds: Flag = False,
    steps: int = 10_000,
    peers: Flag = False,
) -> None:
    """How fast training is on this machine, beside what it is compared with; arms take turns in one run.

    Args:
        out: Where to write the figures.
        device: What to time; CUDA where there is one.
        precision: Of matrix products on a GPU.
        seconds: How long each arm is timed, each turn.
        growth: On a GPU, also how speed changes with seeds, width and length.
        hundred_seeds: On a GPU, also a study of a hundred seeds, both ways of training, tested to 16 times the length.
        steps: The steps of that study.
        peers: On a CPU, also an LSTM layer against that of other libraries, where they are installed (JAX).
    """
    from latebloom.bench.report import run_bench

    require(seconds > 0, "seconds", seconds, "above 0")
    require(steps >= 10, "steps", steps, "10 or more")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"out: {out} is not a file that could be written")
    chosen = {"growth": growth, "hundred": hundred_seeds, "steps": steps, "peers": peers}
    run_bench(out, device=device, mode=precision, seconds=seconds, **chosen)


def study(
    name: Annotated[Positional[str | None], said(metavar="NAME|FILE.py")] = None,
    /,
    *,
    list_studies: Annotated[bool, said(name="list")] = False,
    scale: Literal["tiny", "paper", "large"] = "paper",
    seeds: Number = None,
    out: Out = None,
    workers: Number = None,
    device: Device = None,
    on: Literal["local", "ray"] = "local",
    address: Annotated[str | None, said(metavar="HOST:PORT")] = None,
) -> None:
    """Train every run of a study, and make its report; finished runs are not repeated, interrupted ones go on.

    Args:
        name: A named study, or a Python file with one of your own.
        list_studies: Show the named studies, or the one or the file that is given, and how many runs they are.
        scale: How many seeds and steps: tiny takes minutes on two cores, paper and large want a GPU.
        seeds: How many seeds instead of the scale's.
        out: The study's folder; studies/NAME-SCALE unless given.
        workers: How many runs at once on a CPU; as many as there are cores unless given.
        device: Where to train; CUDA where there is one.
        on: Who trains: processes of this machine, or a Ray cluster (an extra to install).
        address: Of a Ray cluster, or auto to look for one on this machine; unless given, Ray starts one here.
    """
    from latebloom.study import list_all, run_study

    if list_studies:
        list_all(Console(), name)
        return
    if name is None:
        raise ConfigError("study: give a name or a Python file; `latebloom study --list` shows the names")
    folder = _folder(out)
    outcome = run_study(name, scale, seeds=seeds, out=folder, workers=workers, device=device, on=on, address=address)
    if outcome.failures:
        sys.exit(1)


def report(
    paths: Annotated[Positional[tuple[Path, ...]], said(metavar="PATH ...")],
    /,
    *,
    out: Out = None,
) -> None:
    """A page, pictures and tables from results, without running anything.

    Args:
        paths: Results files, folders of studies, and folders of runs, which are set side by side as arms.
        out: The folder for index.html, figures/ and tables/; report unless given.
    """
    from latebloom.report.study import read_sections, write_report
    from latebloom.report.terminal import say, show_sections

    if not paths:
        raise ConfigError("report: give results files or folders of runs, such as results/paper.parquet or runs/mine")
    folder = _folder(out) or Path("report")
    console = Console()
    with console.status("Making the report"):  # pictures of a large study take half a minute
        sections = read_sections(paths)
        page = write_report(sections, folder)
    show_sections(console, sections)
    say(console, f"Page: {page}   Figures: {folder / 'figures'}   Tables: {folder / 'tables'}")


def list_() -> None:
    """The tasks, models, triggers and recipes, with a line each."""
    from latebloom.delay.controller import HOLDS
    from latebloom.listing import list_components
    from latebloom.models.settings import MODELS

    table = Table(box=None, show_header=False, pad_edge=False)
    models = {name: f"{_first_line(model)} (model.layout={model().layout})" for name, model in MODELS.items()}
    families = {
        "models": models,
        "ways to hold attention back": HOLDS,
        **{kind: {entry.name: entry.summary for entry in entries} for kind, entries in list_components().items()},
    }
    for family, members in families.items():
        table.add_row(f"[bold]{family}")
        for name, member in members.items():
            table.add_row(f"  {name}", member if isinstance(member, str) else _first_line(member))
    Console().print(table)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def parse(words: list[str]) -> Callable[[], None]:
    """The command that the words ask for, ready to be called; a mistake in the words is one sentence."""

    def deferred(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
        @wraps(command)
        def remember(*positional: Any, **named: Any) -> Callable[[], None]:
            return partial(command, *positional, **named)

        return remember

    commands = {
        "demo": demo,
        "train": train,
        "evaluate": evaluate,
        "inspect": inspect,
        "study": study,
        "report": report,
        "bench": bench,
        "list": list_,
    }
    complaints = StringIO()
    try:
        with redirect_stderr(complaints):
            return tyro.extras.subcommand_cli_from_dict(
                {name: deferred(command) for name, command in commands.items()},
                prog="latebloom",
                description="Sequence models trained short that work long: delayed attention training.",
                args=changes_last(words),
                config=(tyro.conf.FlagCreatePairsOff,),  # --list, not also --no-list
            )
    except SystemExit as stop:
        if complaints.getvalue().strip():
            raise ConfigError(one_sentence(complaints.getvalue().strip(), words)) from None
        raise stop  # --help


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's mistake is one sentence and exit status 2."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if words == ["--version"]:
            print(f"latebloom {__version__}")
            return
        with full_disk_in_words("what this command makes"):
            parse(load_words(words))()
    except InterruptedRun as stop:
        print(f"latebloom: {stop}", file=sys.stderr)
        sys.exit(130)
    except LatebloomError as error:
        print(f"latebloom: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("out of memory|can't allocate memory", str(error)):
            raise
        print(
            "latebloom: there is not enough memory for this; smaller are for example model.width=32, "
            "training.delayed.batch_size=32 and training.full.batch_size=32",
            file=sys.stderr,
        )
        sys.exit(2)
