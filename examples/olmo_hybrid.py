"""Delayed Attention Training in Transformers' Trainer: a tiny OLMo-Hybrid learns to add and to recall, on a CPU.

    python examples/olmo_hybrid.py                         # one seed of each arm: a table and a picture, in minutes
    python examples/olmo_hybrid.py --seeds 3 --processes 2
    python examples/olmo_hybrid.py --study --seeds 5       # the figures of docs/results/olmo-hybrid.md

The two arms differ by one argument of the callback, `hold`, and by the learning rate, which was chosen for each from
the same three. Finished runs are kept in the results file, and checkpoints of others beside it, so an interrupted
command continues where it was, bit for bit. After a change to the model, name another file with --results.
"""

import re
import shlex
import shutil
import signal
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from json import loads
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM, PrinterCallback, Trainer, TrainerCallback

import latebloom as lb
from latebloom.engine.environment import describe_environment
from latebloom.engine.files import write_json
from latebloom.integrations.transformers import DelayedAttentionCallback
from latebloom.tasks import Stream

TASK = lb.Composite(modulus=2, keys=64, values=8)
TRAINING_LENGTH = 16
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)
SHOWN = (16, 32, 48, 64)
FAR = 3 * TRAINING_LENGTH
ARMS = {"joint": "joint training", "dat": "delayed attention"}
FIRST_SEED = 10
"""The settings here were found on lower seeds."""
RATES, TUNING_SEEDS = (2e-3, 4e-3, 6e-3), (100, 101)
"""The learning rates that --study tries for each arm, and the seeds on which it does."""
CHOSEN: dict[str, float] = {"joint": 6e-3, "dat": 4e-3}
"""The learning rates that it chose."""
IGNORED = -100  # Transformers' label for a position that is not in the loss


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of one run."""

    arm: str
    seed: int
    learning_rate: float
    steps: int
    sequences: int
    """Test sequences at each length."""
    rotary: bool
    """Whether attention has rotary positions."""

    def __str__(self) -> str:
        positions = "" if self.rotary else ", no positions"
        return f"{ARMS[self.arm]}{positions}, rate {self.learning_rate:g}, seed {self.seed}"


def build_model(seed: int, rotary: bool) -> OlmoHybridForCausalLM:
    """Build one layer of the gated delta rule, whose negative eigenvalues can count modulo 2, and one of attention."""
    torch.manual_seed(seed)
    config = OlmoHybridConfig(
        vocab_size=TASK.vocabulary_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=1,  # OLMo bounds a head's logits by its width, so narrow heads cannot be sharp
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0 if rotary else None},
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=16,
        linear_a_log_max=1.0,  # the state decays slowly from the start; at 16 it is gone within a few tokens
        pad_token_id=None,
        eos_token_id=None,
    )
    model = OlmoHybridForCausalLM(config)
    nn.init.normal_(model.model.embed_tokens.weight, std=0.3)  # at 0.02 the layers' outputs hide the token's identity
    return model


class Batches(IterableDataset):
    """The task as Trainer reads it: each item is a whole batch, with labels at the scored positions."""

    def __init__(self, seed: int, size: int) -> None:
        self.stream, self.size = Stream(TASK, seed, TRAINING_LENGTH), size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        index = 0
        while True:
            batch = self.stream.batch(index, self.size)
            labels = torch.full_like(batch.tokens, IGNORED).scatter(1, batch.positions, batch.targets)
            yield {"input_ids": batch.tokens, "labels": labels}
            index += 1


def answer_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Return the loss averaged per answer: the sum is scored at every digit, recall once, and both count the same."""
    sums, recalls = (labels >= 0) & (labels < TASK.modulus), labels >= TASK.modulus
    logits = outputs.logits
    return cross_entropy(logits[sums], labels[sums]) + cross_entropy(logits[recalls], labels[recalls])


class Answers(nn.Module):
    """The model as `lb.evaluate` calls it: logits at the scored positions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return logits.gather(1, positions[:, :, None].expand(-1, -1, logits.shape[2]))


class LogWithName(TrainerCallback):
    """Print progress with the name of the run, because several can train at once."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        if "loss" in logs:
            print(f"{self.job}: step {state.global_step}/{state.max_steps}, loss {float(logs['loss']):.3f}", flush=True)


def train(job: Job, checkpoints: Path) -> dict[str, Any]:
    """Train one run, from its last checkpoint if it has one; return its settings, switch step, time and evaluation."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # it warns that GPU kernels are missing
    transformers.logging.disable_progress_bar()
    model = build_model(job.seed, job.rotary)
    # Joint training has the callback too: it restores weights of OLMo-Hybrid that Trainer leaves out of a resume.
    delay = DelayedAttentionCallback(until=lb.at_fraction(1 / 3), hold="bypass" if job.arm == "dat" else "none")
    folder = checkpoints / re.sub(r"\W+", "-", str(job))
    trainer = Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=job.steps,
            per_device_train_batch_size=1,  # each item is a whole batch
            learning_rate=job.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            adam_beta2=0.95,
            weight_decay=0.01,
            logging_steps=max(1, job.steps // 5),
            save_steps=max(1, job.steps // 5),
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            seed=job.seed,
        ),
        train_dataset=Batches(job.seed, size=64),
        data_collator=lambda items: items[0],
        compute_loss_func=answer_loss,
        callbacks=[LogWithName(job), delay],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.monotonic()
    complete = folder.glob("checkpoint-*/trainer_state.json")  # the file that Trainer writes last
    newest = max(complete, key=lambda file: file.stat().st_mtime, default=None)
    trainer.train(resume_from_checkpoint=str(newest.parent) if newest else None)
    seconds = round(time.monotonic() - started, 1)
    found = lb.evaluate(
        Answers(model), TASK, LENGTHS, training_length=TRAINING_LENGTH, sequences=job.sequences, seed=job.seed
    )
    switch = delay.delay.switch_step if delay.delay is not None and job.arm == "dat" else None
    shutil.rmtree(folder)
    return {**asdict(job), "switch_step": switch, "seconds": seconds, "evaluation": found.to_json()}


def run_all(jobs: Sequence[Job], results: Path, processes: int) -> dict[Job, lb.Evaluation]:
    """Return the evaluation of each job; train those that are not in the results file and add them to it."""
    kept: dict[str, Any] = loads(results.read_text()) if results.exists() else {"commands": [], "runs": []}
    found = {job_of(run): run["evaluation"] for run in kept["runs"]}
    for job in jobs:
        if job in found:
            print(f"{job}: is in {results}")
    environment = {k: v for k, v in describe_environment(0, "cpu").items() if k not in ("seed", "command")}
    kept["commands"] = list(dict.fromkeys([*kept["commands"], shlex.join(["python", *sys.argv])]))
    kept["environment"] = environment | {"transformers": transformers.__version__}
    results.parent.mkdir(parents=True, exist_ok=True)
    for run in train_each([job for job in jobs if job not in found], results.with_suffix(""), processes):
        kept["runs"].append(run)
        write_json(results, kept)
        found[job_of(run)] = run["evaluation"]
        print(f"{job_of(run)}: {run['seconds']:.0f} s of training, {len(found)} runs in {results}", flush=True)
    return {job: lb.Evaluation.from_json(found[job]) for job in jobs}


def train_each(jobs: Sequence[Job], checkpoints: Path, processes: int) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each job as it finishes."""
    if processes == 1:
        yield from (train(job, checkpoints) for job in jobs)
        return
    # Ctrl-C ends the processes at once, and a killed one raises an error instead of blocking forever.
    default = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_DFL)}
    with ProcessPoolExecutor(processes, get_context("spawn"), **default) as pool:
        for done in as_completed([pool.submit(train, job, checkpoints) for job in jobs]):
            yield done.result()


def job_of(run: dict[str, Any]) -> Job:
    return Job(**{field.name: run[field.name] for field in fields(Job)})


def best_rate(arm: str, found: dict[Job, lb.Evaluation]) -> float:
    """Return the learning rate with the highest mean accuracy at three times the training length."""

    def accuracy(rate: float) -> float:
        return fmean(one.accuracy(FAR) for job, one in found.items() if (job.arm, job.learning_rate) == (arm, rate))

    return max(RATES, key=accuracy)


def show(found: dict[Job, lb.Evaluation]) -> None:
    """Print the accuracy of every run by length, and of each answer at three times the training length."""
    heads = [f"{length / TRAINING_LENGTH:g}x" for length in SHOWN] + [f"{answer} 3x" for answer in TASK.answers]
    table = Table("run", "rate", "seed", *heads, title="both answers right, and each at 3x", box=None, pad_edge=False)
    for job, one in found.items():
        shares = [*(one.accuracy(length) for length in SHOWN), *(one.accuracy(FAR, answer) for answer in TASK.answers)]
        table.add_row(ARMS[job.arm], f"{job.learning_rate:g}", str(job.seed), *(f"{share:.3f}" for share in shares))
    Console().print(table)


def main(options: Namespace) -> None:
    """Train a tiny OLMo-Hybrid jointly and with delayed attention, and compare them by length."""
    job = partial(Job, steps=options.steps, sequences=options.sequences, rotary=options.rotary)
    rates = {arm: options.learning_rate or CHOSEN[arm] for arm in ARMS}
    if options.study:
        tried = [job(arm=arm, seed=seed, learning_rate=rate) for seed, rate, arm in product(TUNING_SEEDS, RATES, ARMS)]
        found = run_all(tried, options.results, options.processes)
        show(found)
        rates = {arm: best_rate(arm, found) for arm in ARMS}
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    jobs = [job(arm=arm, seed=seed, learning_rate=rates[arm]) for seed, arm in product(seeds, ARMS)]
    found = run_all(jobs, options.results, options.processes)
    show(found)
    picture = lb.plot({str(job): one for job, one in found.items()}, options.results.with_suffix(".png"))
    print(f"runs: {options.results}, picture: {picture}")


def parse() -> Namespace:
    parser = ArgumentParser(description=main.__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--seeds", type=int, default=1, help="number of seeds from 10 on; the settings were chosen on those below")
    add("--steps", type=int, default=1_200, help="steps of each run; attention is disabled for the first third")
    add("--sequences", type=int, default=1_024, help="test sequences at each length")
    add("--learning-rate", type=float, help="learning rate of both arms, instead of the one chosen for each")
    add("--rotary", action=BooleanOptionalAction, default=True, help="rotary positions, unlike the released model")
    add("--study", action="store_true", help="first choose each arm's learning rate on tuning seeds")
    add("--processes", type=int, default=1, help="runs at once, with one thread each")
    add("--results", type=Path, default=Path("runs/olmo-hybrid.json"), help="file of the finished runs")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
