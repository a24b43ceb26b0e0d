"""Measure the speed of training on this machine, compared with alternatives that are timed in turn in one process."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_device, integer, number
from latebloom.errors import ConfigError, require


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("bench.json"), metavar="FILE", help="results file (default: bench.json)")
    add_device(parser)
    modes = ("tf32", "float32", "bf16")
    add("--precision", choices=modes, default="tf32", help="precision of matrix products on a GPU (default: tf32)")
    add("--seconds", type=number, default=0.5, metavar="S", help="time for each arm, each turn (default: 0.5)")
    add("--growth", action="store_true", help="GPU: also speed by number of seeds, width and length")
    add(
        "--hundred-seeds",
        action="store_true",
        help="GPU: also a study of a hundred seeds, joint and delayed, tested to 16 times the training length",
    )
    add("--steps", type=integer, default=10_000, metavar="N", help="steps of that study (default: 10000)")
    add("--peers", action="store_true", help="also the same work in JAX: the hybrid on a GPU, an LSTM layer on a CPU")
    add(
        "--recurrences",
        action="store_true",
        help="only the time of a training step with each recurrence, relative to the LSTM's",
    )
    add(
        "--processes",
        action="store_true",
        help="GPU: only the time of eight small stacks in one, four and eight processes",
    )
    add(
        "--kernels",
        nargs="?",
        const="lstm",
        metavar="RECURRENCE",
        help="GPU: only the kernels of a step of 64 stacked runs: time and bytes, counted by ncu (default: lstm)",
    )


def run(options: Namespace) -> None:
    from latebloom.bench.report import run_bench, run_kernels, run_processes, run_recurrences

    require(options.seconds > 0, "seconds", options.seconds, "above 0")
    require(options.steps >= 10, "steps", options.steps, "10 or more")
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise ConfigError(f"out: {options.out} is not a file that could be written")
    alone = ("recurrences", "processes", "kernels")
    for name in alone:
        for other in ("growth", "hundred_seeds", "peers", *alone[: alone.index(name)]):
            if getattr(options, name) and getattr(options, other):
                raise ConfigError(f"{name}: they are measured alone; leave out --{other.replace('_', '-')}")
    if options.recurrences:
        run_recurrences(options.out, device=options.device, mode=options.precision, seconds=options.seconds)
        return
    if options.processes:
        run_processes(options.out, device=options.device)
        return
    if options.kernels:
        run_kernels(options.out, options.kernels, device=options.device, mode=options.precision)
        return
    run_bench(
        options.out,
        device=options.device,
        mode=options.precision,
        seconds=options.seconds,
        growth=options.growth,
        hundred=options.hundred_seeds,
        steps=options.steps,
        peers=options.peers,
    )
