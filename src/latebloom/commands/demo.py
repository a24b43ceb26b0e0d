"""Train a small hybrid jointly and with delayed attention, and compare both, in minutes."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_device, add_out, add_overrides, integer


def add_arguments(parser: Parser) -> None:
    add_overrides(parser, "training.steps=500, in both runs")
    add_out(parser, "folder for runs and figures; finished runs in it are shown (default: demo, or demo-seed-N)")
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of weights and data (default: 0)")
    add_device(parser)


def run(options: Namespace) -> None:
    from latebloom.demo import run_demo

    folder = options.out or Path("demo" if options.seed == 0 else f"demo-seed-{options.seed}")
    run_demo(folder, seed=options.seed, device=options.device, overrides=options.overrides)
