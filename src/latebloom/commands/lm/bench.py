"""Measure how fast a language model trains here: tokens per second and share of peak, in Trainer and in a bare loop."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, integer


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("overrides", nargs="*", metavar="FIELD=VALUE", help="change a field of the model's configuration")
    add("--model", default="tiny", metavar="tiny|small|base|FILE|TYPE", help="as in `lm train` (default: tiny)")
    add("--data", type=Path, required=True, metavar="CORPUS", help="a corpus of `latebloom lm prepare`")
    add("--context", type=integer, metavar="N", help="tokens of a window (default: that of the size, or 512)")
    add("--batch", type=integer, metavar="N", help="windows of a batch (default: that of the size, or 32)")
    add("--bf16", action="store_true", help="mixed precision with bfloat16")
    add("--steps", type=integer, default=20, metavar="N", help="steps of each of three turns (default: 20)")
    add("--out", type=Path, default=Path("lm-bench.json"), metavar="FILE", help="results (default: lm-bench.json)")


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.engine.files import write_json
    from latebloom.errors import ConfigError, require
    from latebloom.lm.bench import bench
    from latebloom.lm.corpus import Corpus
    from latebloom.lm.sizes import defaults_of, read_model_config
    from latebloom.lm.train import Training
    from latebloom.report.terminal import say

    require(options.steps >= 1, "steps", options.steps, "1 or more")
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise ConfigError(f"out: {options.out} is not a file that could be written")
    corpus = Corpus.load(options.data)
    sizes = defaults_of(options.model)
    sizes |= {name: getattr(options, name) for name in ("context", "batch") if getattr(options, name) is not None}
    config = read_model_config(options.model, options.overrides, corpus.vocabulary, corpus.end_token)
    settings = Training(model=config, corpus=str(options.data), steps=options.steps, bf16=options.bf16, **sizes)
    console = Console()
    with console.status("Measuring") as status:
        found = bench(settings, corpus, lambda text: status.update(f"Measuring: {text}"), options.steps)
    write_json(options.out, found)
    for name, one in found["tokens_per_second"].items():
        second = "second" if found["clock"] == "wall" else "CPU second"
        say(console, f"{name}: {one['best']:,.0f} tokens per {second} (median {one['median']:,.0f})")
    say(
        console,
        f"Trainer with the callback is at {found['trainer_of_bare_loop']:.2f} of the bare loop; matrix products take "
        f"{found['share_of_peak']:.0%} of the float32 peak of this machine. "
        f"Recurrence: {found['kernels']['recurrence']}.",
    )
    say(console, f"Numbers: {options.out}")
