"""How fast a language model trains: through Trainer with the delay's callback, and in a bare loop beside it."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from latebloom.bench.measure import product_peak
from latebloom.engine.environment import describe_environment
from latebloom.lm.corpus import Corpus
from latebloom.lm.sizes import build_model
from latebloom.lm.train import Training, build_trainer
from latebloom.lm.windows import TrainingWindows, stack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WARM, TIMED = 2, 4
"""Steps that are not timed, and steps of a measurement."""
TURNS = 3


def on_device(model: "PreTrainedModel") -> "PreTrainedModel":
    """Move a model to the GPU if there is one."""
    torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    return model


def bare_loop(model: "PreTrainedModel", settings: Training, corpus: Corpus) -> Callable[[int], None]:
    """Return a function that does so many steps of a plain training loop, on the same data as Trainer."""
    data = TrainingWindows(corpus.split("train"), settings.context)
    device = next(model.parameters()).device
    fused = {"fused": True} if device.type == "cuda" else {}
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay, **fused
    )
    at = 0

    def advance(steps: int) -> None:
        nonlocal at
        model.train()
        for _ in range(steps):
            batch = stack([data[(at + i) % len(data)] for i in range(settings.batch)])
            at += settings.batch
            batch = {name: one.to(device, non_blocking=True) for name, one in batch.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.bf16):
                loss = model(**batch, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return advance


def step_seconds(model: "PreTrainedModel", settings: Training, corpus: Corpus) -> float:
    """Return the time of a step, measured in a bare loop."""
    advance = bare_loop(model, settings, corpus)
    advance(WARM)
    began = time.perf_counter()
    advance(TIMED)
    return (time.perf_counter() - began) / TIMED


def bench(settings: Training, corpus: Corpus, tell: Callable[[str], None], steps: int = 20) -> dict[str, Any]:
    """Return tokens per second of Trainer and of a bare loop, in turns, and the share of the machine's peak."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, kernels = build_model(settings.model, settings.seed, corpus.vocabulary, settings.context)
    count = sum(one.numel() for one in model.parameters())
    bare = bare_loop(on_device(model), settings, corpus)
    bare(WARM)
    tokens = settings.batch * settings.context
    # On a CPU, the time that the process has computed counts, because other processes share the cores.
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    rates: dict[str, list[float]] = {"bare loop": [], "Trainer": []}
    for turn in range(TURNS):
        tell(f"turn {turn + 1} of {TURNS}")
        began = clock()
        bare(steps)
        rates["bare loop"].append(steps * tokens / (clock() - began))
        rates["Trainer"].append(tokens / _trainer_step(settings, corpus, steps, clock))
    peak = product_peak(device, 4096 if device.type == "cuda" else 1024)
    operations = 6 * count * max(map(max, rates.values()))
    best = {name: max(values) for name, values in rates.items()}
    return {
        "environment": describe_environment(settings.seed, device.type),
        "parameters": count,
        "kernels": kernels,
        "context": settings.context,
        "batch": settings.batch,
        "bf16": settings.bf16,
        "clock": "wall" if device.type == "cuda" else "CPU",
        "tokens_per_second": {name: {"best": max(one), "median": median(one)} for name, one in rates.items()},
        "trainer_of_bare_loop": best["Trainer"] / best["bare loop"],
        "peak_float32_operations_per_second": peak,
        "share_of_peak": operations / peak,
    }


def _trainer_step(settings: Training, corpus: Corpus, steps: int, clock: Callable[[], float]) -> float:
    """Return the time of a step of Trainer, with its data and its log; the first steps do not count."""
    from transformers import TrainerCallback

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if torch.cuda.is_available() and state.global_step in (WARM, WARM + steps):
                torch.cuda.synchronize()
            times.append(clock())

    model, _ = build_model(settings.model, settings.seed, corpus.vocabulary, settings.context)
    with tempfile.TemporaryDirectory() as folder:
        timed = replace(settings, steps=WARM + steps, save_every=10**9, log_every=10**9)
        trainer, _ = build_trainer(model, timed, corpus, Path(folder))
        trainer.add_callback(Clock())
        trainer.args.save_strategy = "no"
        trainer.train()
    return (times[WARM + steps - 1] - times[WARM - 1]) / steps
