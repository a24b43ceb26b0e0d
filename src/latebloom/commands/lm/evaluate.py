"""Evaluate a causal language model of Transformers by context length: loss on the same tokens, and probes."""

import json
import sys
from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_device, integer
from latebloom.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a run of `latebloom lm train`, or a folder of any causal model")
    add("--data", type=Path, metavar="CORPUS", help="a corpus with the model's tokenizer (default: that of the run)")
    add("--context", type=integer, metavar="N", help="the training context, 1x (default: that of the run)")
    add("--multiples", default="1,2,4,8,16", metavar="LIST", help="contexts to test (default: 1,2,4,8,16)")
    add("--documents", type=integer, default=64, metavar="N", help="test documents (default: 64)")
    add("--probes", type=integer, default=64, metavar="N", help="probes of each kind at each length (default: 64)")
    add("--json", metavar="FILE", help="write the numbers here, - for standard output (default: into the run's folder)")
    add_device(parser)


def run(options: Namespace) -> None:
    from rich.console import Console

    from latebloom.engine.environment import choose_device
    from latebloom.engine.files import write_json
    from latebloom.lengths import parse_lengths
    from latebloom.lm.corpus import Corpus
    from latebloom.lm.evaluate import Evaluating, check_tokenizer, evaluate, load_trained
    from latebloom.lm.tables import loss_table, probe_table, sentences
    from latebloom.lm.work import Work
    from latebloom.report.tables import print_table
    from latebloom.report.terminal import say

    device = choose_device(options.device)
    loaded = load_trained(options.model)
    trained = loaded.settings
    data = options.data or (Path(trained["corpus"]) if trained else None)
    context = trained.get("context") if options.context is None else options.context
    if data is None or context is None:
        missing = " and ".join(name for name, one in (("--data", data), ("--context", context)) if one is None)
        raise ConfigError(f"evaluate: {options.model} was not trained here; give {missing}")
    corpus = Corpus.load(data)
    check_tokenizer(loaded.folder, corpus)
    settings = Evaluating(
        context=context,
        multiples=tuple(parse_lengths(options.multiples)),
        documents=options.documents,
        probes=options.probes,
    )
    with Work(visible=True) as work:
        found = evaluate(loaded.model.to(device), corpus, settings, work)
    if options.json == "-":
        json.dump(found, sys.stdout, indent=2)
        print()
        return
    console = Console()
    say(console, f"Weights: {loaded.weights}.")
    for table in (loss_table(found), probe_table(found)):
        if table.rows:
            print_table(console, table)
    for sentence in sentences(found):
        say(console, sentence)
    file = Path(options.json) if options.json else loaded.folder.parent / "evaluation.json" if trained else None
    if file is not None:
        try:
            write_json(file, found)
        except OSError as error:
            raise ConfigError(f"json: {file} cannot be written ({error.strerror})") from None
        say(console, f"Numbers: {file}")
