"""Train a language model on a corpus with Transformers' Trainer, jointly or with delayed attention."""

from argparse import Namespace
from pathlib import Path

from latebloom.arguments import Parser, add_out, integer, number
from latebloom.errors import ConfigError, require


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("overrides", nargs="*", metavar="FIELD=VALUE", help="change a field of the model's configuration")
    parser.option_hint = "fields of the model's configuration are written FIELD=VALUE, such as hidden_size=256"
    add(
        "--model",
        default="tiny",
        metavar="tiny|small|base|FILE|TYPE",
        help="a named size, a config.json, JSON, or a type of Transformers such as qwen3_next (default: tiny)",
    )
    add("--data", type=Path, required=True, metavar="CORPUS", help="a corpus of `latebloom lm prepare`")
    add_out(parser, "folder of the run (default: runs/lm-NAME-WAY-SEED); a run that was interrupted continues")
    add(
        "--until",
        metavar="WHEN",
        help="delay attention until 10%%, a step, plateau@4x or loss<3.2@4x (default: joint training)",
    )
    add(
        "--latest",
        type=integer,
        default=0,
        metavar="STEP",
        help="step of the switch at the latest (default: half of the steps)",
    )
    add(
        "--hold",
        choices=("bypass", "freeze", "ramp"),
        default="bypass",
        help="how attention is delayed (default: bypass)",
    )
    add(
        "--ramp-steps",
        type=integer,
        default=0,
        metavar="N",
        help="with --hold ramp: steps until attention's output has its full size",
    )
    add("--context", type=integer, metavar="N", help="tokens of a training window (default: that of the size, or 512)")
    add(
        "--batch",
        type=integer,
        metavar="N",
        help="windows of a batch on each process (default: that of the size, or 32)",
    )
    add("--steps", type=integer, metavar="N", help="optimizer steps (default: once over the training tokens)")
    add("--tokens", type=number, metavar="N", help="tokens to train on, instead of --steps, such as 20e6")
    add("--learning-rate", type=number, metavar="RATE", help="peak learning rate (default: that of the size, or 0.001)")
    add("--seed", type=integer, default=0, metavar="N", help="seed of weights and order of data (default: 0)")
    add("--bf16", action="store_true", help="mixed precision with bfloat16")
    add("--shard", action="store_true", help="divide the model among the processes that torchrun starts (FSDP2)")
    add("--log-every", type=integer, default=20, metavar="N", help="steps between entries of the log (default: 20)")
    add(
        "--save-every",
        type=integer,
        default=200,
        metavar="N",
        help="steps between checkpoints, rounded up to a multiple of --log-every (default: 200)",
    )
    add("--track", metavar="tensorboard|wandb|trackio", help="send curves to a tracker while the run trains")


def run(options: Namespace) -> None:
    import os

    from rich.console import Console

    from latebloom.lm.corpus import Corpus
    from latebloom.lm.sizes import defaults_of, read_model_config
    from latebloom.lm.train import Training, is_first_process, train
    from latebloom.lm.work import Work
    from latebloom.report.terminal import say

    corpus = Corpus.load(options.data)
    if options.steps is not None and options.tokens is not None:
        raise ConfigError("--steps and --tokens exclude each other; give one")
    sizes = defaults_of(options.model)
    sizes |= {name: getattr(options, name) for name in sizes if getattr(options, name) is not None}
    require(sizes["context"] >= 8, "context", sizes["context"], "8 or more")
    require(sizes["batch"] >= 1, "batch", sizes["batch"], "1 or more")
    tokens = corpus.manifest["splits"]["train"]["tokens"] if options.tokens is None else options.tokens
    require(tokens >= 1, "tokens", tokens, "1 or more")
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # as torchrun sets it
    in_step = sizes["context"] * sizes["batch"] * processes
    steps = max(1, int(tokens // in_step)) if options.steps is None else options.steps
    settings = Training(
        model=read_model_config(options.model, options.overrides, corpus.vocabulary, corpus.end_token),
        corpus=str(options.data.resolve()),
        steps=steps,
        until=options.until,
        hold=options.hold,
        ramp_steps=options.ramp_steps,
        latest=options.latest,
        bf16=options.bf16,
        shard=options.shard,
        seed=options.seed,
        log_every=options.log_every,
        save_every=options.save_every,
        **sizes,
    )
    way = "joint" if options.until is None else "delayed"
    name = options.model if options.model.replace("_", "").isalnum() else settings.model["model_type"]
    folder = options.out or Path("runs") / f"lm-{name}-{way}-{options.seed}"
    with Work(visible=is_first_process()) as work:
        result = train(settings, folder, track=options.track, work=work)
    if not result:  # another process writes
        return
    console = Console()
    if result["switch_step"] is not None:
        say(console, f"Attention was enabled at step {result['switch_step']}: {result['switch_reason']}.")
    loss = "none" if result["final_loss"] is None else f"{result['final_loss']:.3f} nats"
    say(
        console,
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['tokens']:,} tokens; last training "
        f"loss: {loss}. Recurrence: {result['kernels']['recurrence']}.",
    )
    say(console, f"Everything is in {folder}. Evaluate it: latebloom lm evaluate {folder}")
