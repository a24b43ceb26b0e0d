"""Make a corpus from text files: remove duplicates, split, tokenize, and write memory-mapped files with hashes."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_out, integer, share
from latebloom.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=Path,
        metavar="FOLDER|FILE",
        help="folders and files of text or code, tables, saved datasets",
    )
    add_out(parser, "folder of the corpus (default: corpora/NAME); a command that was interrupted continues it")
    add("--vocabulary", type=integer, default=4096, metavar="N", help="size of the vocabulary (default: 4096)")
    add("--tokenizer", metavar="PATH", help="use this tokenizer.json, or that of a model's folder, and train none")
    add(
        "--split",
        choices=("auto", "package", "file"),
        default="auto",
        help="never divide a file, or a package: all files below one top-level name (default: package if there are 10)",
    )
    add("--validation", type=share, default=0.03, metavar="SHARE", help="share of the text for triggers (default: 3%%)")
    add("--test", type=share, default=0.07, metavar="SHARE", help="share of the text for evaluation (default: 7%%)")
    add(
        "--include", action="append", default=[], metavar="PATTERN", help="only files whose names match, such as '*.py'"
    )
    add("--column", metavar="NAME", help="column of tables with the text (default: text, or content)")
    add("--largest", type=integer, default=1_000_000, metavar="BYTES", help="leave out larger files (default: 1000000)")
    add("--traces", type=share, default=0.0, metavar="SHARE", help="share of short traces in training (default: none)")


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.lm.prepare import Preparing, prepare
    from latebloom.lm.work import Work
    from latebloom.report.tables import print_table, text_table
    from latebloom.report.terminal import say

    names = ("vocabulary", "column", "split", "validation", "test", "largest", "traces")
    given = {name: getattr(options, name) for name in names}
    settings = Preparing(tokenizer=options.tokenizer, include=tuple(options.include), **given)
    if not options.paths:
        raise ConfigError("data: give folders or files of text")
    out = options.out or Path("corpora") / (options.paths[0].resolve().name or "corpus")
    with Work(visible=True) as work:
        corpus = prepare(options.paths, out, settings, work)
    manifest, console = corpus.manifest, Console()
    rows = [
        (name, f"{one['documents']:,}", f"{one['bytes'] / 1e6:.1f} MB", f"{one['tokens']:,}")
        for name, one in manifest["splits"].items()
    ]
    print_table(console, text_table(f"Corpus in {out}", ("split", "documents", "text", "tokens"), rows, names=1))
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in manifest["left_out"].items()) or "none"
    left_out_of = "Rows" if manifest["split_by"] == "row" else "Files"
    say(console, f"{left_out_of} left out: {left_out}. A {manifest['split_by']} is never divided between splits.")
    say(console, f"Vocabulary: {manifest['vocabulary']:,} tokens. Corpus hash: {corpus.hash}.")
