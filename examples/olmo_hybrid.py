"""Delayed attention in Transformers' Trainer: a tiny OLMo-Hybrid learns to count and to recall, on a CPU.

    python examples/olmo_hybrid.py                         # one seed both ways: a table, a picture, some minutes
    python examples/olmo_hybrid.py --seeds 3 --processes 2
    python examples/olmo_hybrid.py --study --seeds 5       # what docs/your-model.md shows

Both ways of training are the same but for one argument of Trainer, the callback, and for the learning rate, which was
chosen for each from the same three (--learning-rate gives both the same). Every finished run is in the results
file: an interruption loses the run under way, and the same command goes on from there. After a change to the model,
name another file with --results.
"""

import shlex
import signal
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterator, Sequence
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
from latebloom.engine.checkpoint import write_json
from latebloom.engine.environment import describe_environment
from latebloom.integrations.transformers import DelayedAttentionCallback
from latebloom.tasks import Stream

TASK = lb.Composite(modulus=2, keys=64, values=8)
TRAINING_LENGTH = 16
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)
SHOWN = (16, 32, 48, 64)
FAR = 3 * TRAINING_LENGTH
ARMS = {"joint": "joint training", "dat": "delayed attention"}
FIRST_SEED = 10
"""The settings here were found on seeds below."""
RATES, HELD_OUT = (2e-3, 4e-3, 6e-3), (100, 101)
"""What a study chooses each arm's learning rate from, and the seeds that it does so on."""
CHOSEN = {"joint": 6e-3, "dat": 4e-3}
"""What it chose."""
NOT_ASKED = -100  # Transformers' label for a place without an answer


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    arm: str
    seed: int
    learning_rate: float
    steps: int
    sequences: int
    """Tested at each length."""
    rotary: bool
    """Rotary positions in attention, as the configuration has them unless told otherwise."""

    def __str__(self) -> str:
        positions = "" if self.rotary else ", no positions"
        return f"{ARMS[self.arm]}{positions}, rate {self.learning_rate:g}, seed {self.seed}"


def build_model(seed: int, rotary: bool) -> OlmoHybridForCausalLM:
    """One layer of the gated delta rule, whose negative eigenvalues let it count modulo 2, and one of attention."""
    torch.manual_seed(seed)
    config = OlmoHybridConfig(
        vocab_size=TASK.vocabulary_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=1,  # OLMo bounds a head's logits by its width: a narrow head stays blunt
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0 if rotary else None},
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=16,
        linear_a_log_max=1.0,  # the state fades slowly from the start; at 16 it is gone within some tokens
        pad_token_id=None,
        eos_token_id=None,
    )
    model = OlmoHybridForCausalLM(config)
    nn.init.normal_(model.model.embed_tokens.weight, std=0.3)  # at 0.02 the layers' outputs drown which token it was
    return model


class Batches(IterableDataset):
    """The task as Trainer takes it: an item is a whole batch, its labels stand where the answers are asked."""

    def __init__(self, seed: int, size: int) -> None:
        self.stream, self.size = Stream(TASK, seed, TRAINING_LENGTH), size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        index = 0
        while True:
            batch = self.stream.batch(index, self.size)
            labels = torch.full_like(batch.tokens, NOT_ASKED).scatter(1, batch.positions, batch.targets)
            yield {"input_ids": batch.tokens, "labels": labels}
            index += 1


def answer_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Sum and recall count the same, though the sum is asked at every digit and recall once."""
    sums, recalls = (labels >= 0) & (labels < TASK.modulus), labels >= TASK.modulus
    logits = outputs.logits
    return cross_entropy(logits[sums], labels[sums]) + cross_entropy(logits[recalls], labels[recalls])


class Answers(nn.Module):
    """The model as `lb.evaluate` asks it: logits at the asked places."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return logits.gather(1, positions[:, :, None].expand(-1, -1, logits.shape[2]))


class Tell(TrainerCallback):
    """A line of progress that says whose it is: runs may be beside each other."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        if "loss" in logs:
            print(f"{self.job}: step {state.global_step}/{state.max_steps}, loss {float(logs['loss']):.3f}", flush=True)


def train(job: Job) -> dict[str, Any]:
    """Train one arm, and say how often each answer is right at each length."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # of faster kernels, which are for GPUs
    model = build_model(job.seed, job.rotary)
    delay = DelayedAttentionCallback(until=lb.at_fraction(1 / 3))
    trainer = Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir="runs/trainer",
            max_steps=job.steps,
            per_device_train_batch_size=1,  # of whole batches
            learning_rate=job.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=0.05,
            adam_beta2=0.95,
            weight_decay=0.01,
            logging_steps=max(1, job.steps // 5),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            seed=job.seed,
        ),
        train_dataset=Batches(job.seed, size=64),
        data_collator=lambda items: items[0],
        compute_loss_func=answer_loss,
        callbacks=[Tell(job), *([delay] if job.arm == "dat" else [])],
    )
    trainer.remove_callback(PrinterCallback)
    started = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - started
    found = lb.evaluate(
        Answers(model), TASK, LENGTHS, training_length=TRAINING_LENGTH, sequences=job.sequences, seed=job.seed
    )
    switch = delay.delay.switch_step if delay.delay is not None else None
    return {**asdict(job), "switch_step": switch, "seconds": round(seconds, 1), "evaluation": found.to_json()}


def run_all(jobs: Sequence[Job], results: Path, processes: int) -> dict[Job, lb.Evaluation]:
    """What each job found; those that are not in the results file are run, and written there one by one."""
    kept: dict[str, Any] = loads(results.read_text()) if results.exists() else {"commands": [], "runs": []}
    found = {job_of(run): run["evaluation"] for run in kept["runs"]}
    for job in jobs:
        if job in found:
            print(f"{job}: is in {results}")
    where = {key: value for key, value in describe_environment(0, "cpu").items() if key not in ("seed", "command")}
    kept["commands"] = list(dict.fromkeys([*kept["commands"], shlex.join(["python", *sys.argv])]))
    kept["environment"] = where | {"transformers": transformers.__version__}
    results.parent.mkdir(parents=True, exist_ok=True)
    for run in each(train, [job for job in jobs if job not in found], processes):
        kept["runs"].append(run)
        write_json(results, kept)
        job = job_of(run)
        found[job] = run["evaluation"]
        print(f"{job}: {run['seconds']:.0f} s of training, {len(found)} in {results}", flush=True)
    return {job: lb.Evaluation.from_json(found[job]) for job in jobs}


def each(work: Callable[[Job], dict[str, Any]], jobs: Sequence[Job], processes: int) -> Iterator[dict[str, Any]]:
    """What comes of each job, as it is finished."""
    if processes == 1:
        yield from map(work, jobs)
    else:
        # Ctrl-C ends the processes at once, and one that is killed is an error instead of a wait without end.
        ended = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_DFL)}
        with ProcessPoolExecutor(processes, get_context("spawn"), **ended) as pool:
            for done in as_completed([pool.submit(work, job) for job in jobs]):
                yield done.result()


def job_of(run: dict[str, Any]) -> Job:
    return Job(**{field.name: run[field.name] for field in fields(Job)})


def best_rate(arm: str, found: dict[Job, lb.Evaluation]) -> float:
    """The learning rate with the highest accuracy at three times the training length, over the held-out seeds."""

    def accuracy(rate: float) -> float:
        return fmean(one.accuracy(FAR) for job, one in found.items() if (job.arm, job.learning_rate) == (arm, rate))

    return max(RATES, key=accuracy)


def show(found: dict[Job, lb.Evaluation]) -> None:
    """Accuracy of every run by length, and of each answer far beyond the training length."""
    heads = [f"{length / TRAINING_LENGTH:g}x" for length in SHOWN] + [f"{answer} 3x" for answer in TASK.answers]
    table = Table("run", "rate", "seed", *heads, title="both answers right, and each at 3x", box=None, pad_edge=False)
    for job, one in found.items():
        shares = [*(one.accuracy(length) for length in SHOWN), *(one.accuracy(FAR, answer) for answer in TASK.answers)]
        table.add_row(ARMS[job.arm], f"{job.learning_rate:g}", str(job.seed), *(f"{share:.3f}" for share in shares))
    Console().print(table)


def main(options: Namespace) -> None:
    """Train a tiny OLMo-Hybrid jointly and with delayed attention, and compare them by length."""
    results, processes = options.results, options.processes
    job = partial(Job, steps=options.steps, sequences=options.sequences, rotary=options.rotary)
    rates = {arm: options.learning_rate or CHOSEN[arm] for arm in ARMS}
    if options.study:
        tried = [job(arm=arm, seed=seed, learning_rate=rate) for seed, rate, arm in product(HELD_OUT, RATES, ARMS)]
        found = run_all(tried, results, processes)
        show(found)
        rates = {arm: best_rate(arm, found) for arm in ARMS}
    chosen = range(FIRST_SEED, FIRST_SEED + options.seeds)
    jobs = [job(arm=arm, seed=seed, learning_rate=rates[arm]) for seed, arm in product(chosen, ARMS)]
    found = run_all(jobs, results, processes)
    show(found)
    picture = lb.plot({str(job): one for job, one in found.items()}, results.with_suffix(".png"))
    print(f"runs: {results}, picture: {picture}")


def parse() -> Namespace:
    parser = ArgumentParser(description=main.__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--seeds", type=int, default=1, help="number of seeds from 10 on; the settings were chosen on those below")
    add("--steps", type=int, default=1_200, help="steps of each run; attention is disabled for the first third")
    add("--sequences", type=int, default=1_024, help="test sequences at each length")
    add("--learning-rate", type=float, help="learning rate of both arms, instead of the one chosen for each")
    add("--rotary", action=BooleanOptionalAction, default=True, help="rotary positions, unlike the released model")
    add("--study", action="store_true", help="first choose each arm's learning rate on held-out seeds")
    add("--processes", type=int, default=1, help="runs at once, with one thread each")
    add("--results", type=Path, default=Path("runs/olmo-hybrid.json"), help="file of the finished runs")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
