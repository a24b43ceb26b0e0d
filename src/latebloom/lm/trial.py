"""A trial: short joint and short delayed trainings of one model on one's own data, and what they say.

The folder of a trial has the corpus, `plan.json` (how many steps fit into the minutes), a run for each arm and seed,
the numbers in `trial.json` and the page `index.html`. An interrupted trial continues with the plan that it made.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from latebloom.differences import describe_differences
from latebloom.engine.files import write_json
from latebloom.errors import ConfigError, catch_write_errors
from latebloom.fields import Count, Positive, at_least, check_fields
from latebloom.lm.bench import on_device
from latebloom.lm.compare import recommend
from latebloom.lm.corpus import MANIFEST, Corpus, count_traces
from latebloom.lm.evaluate import Evaluating, evaluate, load_trained
from latebloom.lm.extra import begin_folder
from latebloom.lm.pace import ENTRIES, FEWEST, FEWEST_STEPS, PAGE_SHARE, START, Cost, OutOfTime, TimedWork, fit, measure
from latebloom.lm.prepare import Preparing, TraceShare, changed_text, check_text, prepare, remove_corpus
from latebloom.lm.saved import read_saved, read_saved_lines
from latebloom.lm.sizes import SIZES, build_model, defaults_of, read_model_config
from latebloom.lm.train import Training, find_delayed, train
from latebloom.lm.windows import scored_windows
from latebloom.lm.work import Work

ARMS = ("joint", "delayed")
MOST_STEPS = 10**9
MULTIPLES = (1, 2, 4, 8, 16)
TRACES = 0.15
"""The share of traces in the training text, unless another is given; without them no small model answers a probe."""
TEXT_A_MINUTE, TEXT_A_MINUTE_ON_GPU = 3_000_000, 50_000_000
"""Bytes of text that are prepared for each minute of a trial; its runs read no more than that, or not much."""
LEAST_TEXT = 30_000_000
"""Bytes of text that are prepared in any case, so that the test split has enough documents."""
UNIGRAM_TOKENS = 2_000_000
TOO_LITTLE_TIME = {
    "verdict": "too little time",
    "sentence": "There was too little time to tell: the machine turned out slower than it was when a short run was "
    "measured, and no seed was done when the minutes were over.",
    "advice": "The same command continues the runs with the same minutes again.",
}
"""What a trial says if no seed was trained both ways."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The settings of a trial."""

    model: str = "tiny"
    """A named size, a configuration, or a type of Transformers."""
    overrides: tuple[str, ...] = ()
    """FIELD=VALUE for the model's configuration."""
    minutes: Positive = 10.0
    """How long the trial may take."""
    seeds: Count = 3
    until: str = "10%"
    """When attention is enabled in the delayed arm."""
    context: Annotated[int, at_least(0)] = 0
    """Tokens of a training window; by default that of the size."""
    batch: Annotated[int, at_least(0)] = 0
    learning_rate: Annotated[float, at_least(0)] = 0.0
    vocabulary: Annotated[int, at_least(0)] = 0
    """Tokens of the tokenizer; by default 1,024 for tiny and 4,096 otherwise."""
    include: tuple[str, ...] = ()
    traces: TraceShare = TRACES
    """The share of synthetic traces in the training text; a prepared corpus stays as it is."""
    processes: Annotated[int, at_least(0)] = 0
    """Runs at once; by default two on a CPU with two cores or more, else one."""

    def __post_init__(self) -> None:
        check_fields(self)


def run_trial(paths: Sequence[Path], out: Path, settings: Trial, work: Work | None = None) -> dict[str, Any]:
    """Run a trial, or continue it, and return its numbers, which `trial.json` has too.

    If the machine turns out slower than it was when runs were measured, later seeds are left out to keep the time, and
    a run that is not done when the minutes are over is stopped.
    """
    work, began = work or Work(), time.time()
    deadline = began + (1 - PAGE_SHARE) * 60 * settings.minutes - START
    _check_arguments(paths, out, settings)
    begin_folder(out, "corpus", "plan.json", "runs", "trial.json", "index.html")
    corpus = _corpus(paths, out, settings, work)
    on_gpu = torch.cuda.is_available()
    processes = settings.processes or (1 if on_gpu or (os.cpu_count() or 1) < 2 else 2)
    with catch_write_errors(out), _workers(processes) as workers:
        plan = _plan(corpus, out, settings, workers, deadline, work)
        work.begin("training and evaluating", 2 * plan["seeds"], "0 runs done")
        done, together, longest, finished = 0, max(1, processes // 2), 0.0, 0

        def tell(run: tuple[Any, ...]) -> None:
            nonlocal finished
            finished += 1
            work.advance(note=f"{finished} runs done")
            work.note(f"{run[0]}, seed {run[1]} done ({finished} of {2 * plan['seeds']} runs)")

        while done < plan["seeds"]:
            seeds = range(done, min(done + together, plan["seeds"]))
            started = time.time()
            if done and started + longest > deadline and not _is_done(out, seeds):
                break
            try:
                workers.run(run_one, [(arm, seed, out, plan, deadline) for seed in seeds for arm in ARMS], tell)
            except OutOfTime:
                while _is_done(out, [done]):
                    done += 1
                break
            done, longest = seeds.stop, max(longest, time.time() - started)
        found = _collect(out, plan, done, corpus, time.time() - began)
        write_json(out / "trial.json", found)
    return found


class _Workers:
    """Calls functions in processes of their own, or here if there is one process only."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool = None
        if processes > 1:
            threads = max(1, (os.cpu_count() or 1) // processes)
            # Ctrl-C ends the processes at once; their runs continue from the last checkpoint.
            self._pool = ProcessPoolExecutor(
                processes, get_context("spawn"), initializer=_begin_worker, initargs=(threads,)
            )

    def run(
        self,
        work: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        tell: Callable[[tuple[Any, ...]], None] = lambda _: None,
    ) -> list[Any]:
        """Return the results of all calls, several of which run at once; `tell` is called after each."""
        if self._pool is None:
            results = []
            for one in arguments:
                results.append(work(*one))
                tell(one)
            return results
        calls = {self._pool.submit(work, *one): one for one in arguments}
        for call in as_completed(calls):
            call.result()
            tell(calls[call])
        return [call.result() for call in calls]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(threads)


@contextmanager
def _workers(processes: int) -> Iterator[_Workers]:
    workers = _Workers(processes)
    try:
        yield workers
    finally:
        workers.close()


def _is_done(out: Path, seeds: Sequence[int]) -> bool:
    return all((_run_folder(out, arm, seed) / "evaluation.json").exists() for arm in ARMS for seed in seeds)


def _run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / "runs" / f"{arm}-{seed}"


def _check_arguments(paths: Sequence[Path], out: Path, settings: Trial) -> None:
    """Raise if something is wrong that can be known before the corpus is made; nothing is written."""
    if _is_prepared(paths):
        corpus = Corpus.load(paths[0])
        vocabulary, end_token = corpus.vocabulary, corpus.end_token
    else:
        made = _preparing(settings)
        check_text(paths, made, out)
        vocabulary, end_token = made.vocabulary, 0
    training = _training(out, vocabulary, end_token, settings)
    delayed = replace(training, until=settings.until, steps=MOST_STEPS)
    delayed.trigger()
    model, _ = build_model(training.model, 0, vocabulary, training.context)
    find_delayed(model, delayed)


def _is_prepared(paths: Sequence[Path]) -> bool:
    return len(paths) == 1 and (paths[0] / MANIFEST).exists()


def _preparing(settings: Trial) -> Preparing:
    vocabulary = settings.vocabulary or (1024 if settings.model == "tiny" else 4096)
    a_minute = TEXT_A_MINUTE_ON_GPU if torch.cuda.is_available() else TEXT_A_MINUTE
    at_most = max(LEAST_TEXT, int(settings.minutes * a_minute))
    return Preparing(vocabulary=vocabulary, traces=settings.traces, include=settings.include, at_most=at_most)


def _corpus(paths: Sequence[Path], out: Path, settings: Trial, work: Work) -> Corpus:
    """Return the corpus that is given, or make one from text; make it again if the text was changed before a run."""
    if _is_prepared(paths):
        return Corpus.load(paths[0])
    made, folder = _preparing(settings), out / "corpus"
    if changed := changed_text(check_text(paths, made, out), folder, made):
        if (out / "plan.json").exists() or (out / "runs").exists():
            raise ConfigError(
                f"data: the text has changed since the trial in {out} began ({changed}); give a new folder with --out"
            )
        with catch_write_errors(out):
            remove_corpus(folder)
    return prepare(paths, folder, made, work, without=out)


def _plan(corpus: Corpus, out: Path, settings: Trial, workers: _Workers, deadline: float, work: Work) -> dict[str, Any]:
    """Return the plan that was made before, or measure and make one that fits into the time until the deadline."""
    file, asked = out / "plan.json", json.loads(json.dumps(asdict(settings))) | {"corpus_hash": corpus.hash}
    if file.exists():
        plan = read_saved(file, "asked")
        if changed := describe_differences(plan["asked"], asked):
            raise ConfigError(f"out: {out} has a trial with other settings ({changed}); give a new folder")
        return {"seeds": settings.seeds} | plan  # plans of earlier versions have as many as were asked for
    work.begin("measuring a short run", None)
    training = _training(corpus.folder, corpus.vocabulary, corpus.end_token, settings)
    contexts = _testable(corpus, training.context)
    model, _ = build_model(training.model, 0, corpus.vocabulary, training.context)
    multiples = tuple(context // training.context for context in contexts)
    # In all processes at once, because they share the machine when they train.
    costs = workers.run(measure, [(training, settings.until, multiples)] * workers.processes)
    cost = Cost(*(max(values) for values in zip(*map(astuple, costs), strict=True)))
    amount = fit(deadline - time.time(), settings.seeds, workers.processes, cost)
    if amount.steps < FEWEST_STEPS:
        count = sum(one.numel() for one in model.parameters())
        advice = " or ".join(["more minutes", *_smaller(settings, model)])
        raise ConfigError(
            f"minutes: {settings.minutes:g} minutes allow {amount.steps} steps for each of {2 * amount.seeds} runs of "
            f"this model with {count:,} parameters, and at least {FEWEST_STEPS} are needed; give {advice}"
        )
    steps = amount.steps
    replace(training, until=settings.until, steps=steps).trigger()
    plan = {
        "asked": asked,
        "corpus": str(corpus.folder.resolve()),
        "training": asdict(
            replace(training, steps=steps, save_every=max(10, steps // 4), log_every=-(-steps // ENTRIES))
        ),
        "until": settings.until,
        "multiples": list(multiples),
        **asdict(amount),
        "processes": workers.processes,
        "cost": asdict(cost),
    }
    write_json(file, plan)
    return plan


def _smaller(settings: Trial, model: Any) -> list[str]:
    """Return how to make the model smaller, if a way is known."""
    if settings.model in SIZES:
        before = list(SIZES)[: list(SIZES).index(settings.model)]
        return [f"a smaller model, such as {before[0]}"] if before else []
    config = model.config.get_text_config()
    small = {"num_hidden_layers": 4, "hidden_size": 128}
    fields = [f"{name}={value}" for name, value in small.items() if getattr(config, name, 0) > value]
    return [f"a smaller model, such as with {' '.join(fields)}"] if fields else []


def _training(folder: Path, vocabulary: int, end_token: int, settings: Trial) -> Training:
    sizes = defaults_of(settings.model)
    sizes |= {name: getattr(settings, name) for name in sizes if getattr(settings, name)}
    config = read_model_config(settings.model, settings.overrides, vocabulary, end_token)
    return Training(model=config, corpus=str(folder.resolve()), steps=FEWEST_STEPS, **sizes)


def _testable(corpus: Corpus, context: int) -> list[int]:
    """Return the contexts for which the test split has enough text."""
    contexts, scored = [], min(128, context // 2)
    for multiple in MULTIPLES:
        try:
            windows = scored_windows(corpus, "test", multiple * context, scored, FEWEST)
        except ConfigError:
            break
        if len(windows) < FEWEST:
            break
        contexts.append(multiple * context)
    if not contexts:
        ends = corpus.split("test").document_ends(corpus.end_token)
        count = int(((np.diff(ends, prepend=0) > scored) & (ends >= context)).sum())
        by_name = corpus.manifest["split_by"] == "package"
        advice = (
            "the split divides no top-level name, so give text under more of them, a shorter --context, or a corpus of "
            f"`latebloom lm prepare --split file --traces {TRACES}`"
            if by_name
            else "give more files, or a shorter --context"
        )
        raise ConfigError(
            f"data: only {count} of the {len(ends):,} test documents have the {scored + 1} tokens that are needed "
            f"for a context of {context}; at least {FEWEST} documents must have them; {advice}"
        )
    return contexts


def run_one(arm: str, seed: int, out: Path, plan: dict[str, Any], deadline: float) -> None:
    """Train and evaluate one run; a finished one is left as it is. At the deadline, a time of day, it is stopped."""
    folder = _run_folder(out, arm, seed)
    file = folder / "evaluation.json"
    if file.exists():
        return
    training, work = Training(**plan["training"]), TimedWork(deadline)
    train(replace(training, seed=seed, until=plan["until"] if arm == "delayed" else None), folder, work=work)
    model = load_trained(folder).model
    settings = Evaluating(
        context=training.context,
        multiples=tuple(plan["multiples"]),
        documents=plan["documents"],
        probes=plan["probes"],
    )
    began, used = time.monotonic(), time.process_time()
    found = evaluate(on_device(model), Corpus.load(Path(training.corpus)), settings, work)
    cost = {"evaluation_seconds": time.monotonic() - began, "evaluation_cpu_seconds": time.process_time() - used}
    write_json(file, found | cost)


def unigram_loss(corpus: Corpus) -> float:
    """Return the entropy of the frequencies of the training tokens, in nats."""
    tokens = corpus.split("train")
    counts = np.bincount(tokens.read(0, min(len(tokens), UNIGRAM_TOKENS)))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _collect(out: Path, plan: dict[str, Any], seeds: int, corpus: Corpus, seconds: float) -> dict[str, Any]:
    """Return the numbers of all runs, and what they say."""
    arms: dict[str, dict[int, dict[str, Any]]] = {arm: {} for arm in ARMS}
    runs = []
    for arm in ARMS:
        for seed in range(seeds):
            folder = _run_folder(out, arm, seed)
            arms[arm][seed] = read_saved(folder / "evaluation.json")
            log = read_saved_lines(folder / "metrics.jsonl")
            curve = {
                "step": [one["step"] for one in log if "loss" in one],
                "value": [one["loss"] for one in log if "loss" in one],
            }
            runs.append({"arm": arm, "seed": seed, "curve": curve, **read_saved(folder / "result.json")})
    unigram = unigram_loss(corpus)
    said = asdict(recommend(arms, unigram)) if seeds else TOO_LITTLE_TIME
    return {
        "plan": plan,
        "corpus": {name: corpus.manifest[name] for name in ("splits", "vocabulary", "split_by", "left_out")}
        | {"traces": count_traces(corpus)},
        "recommendation": said,
        "unigram_loss": unigram,
        "seconds": round(seconds, 1),
        "runs": runs,
        "evaluations": {arm: {str(seed): found for seed, found in by_seed.items()} for arm, by_seed in arms.items()},
    }
