"""The benchmark of processes: stacks too small to fill a GPU, trained one after the other and several at once."""

import os
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from latebloom.bench.measure import Tell
from latebloom.config import RunConfig
from latebloom.engine.settings import Phase, Training
from latebloom.errors import LatebloomError
from latebloom.evaluation.settings import Evaluating
from latebloom.layers.recurrence import Recurrence
from latebloom.models.settings import lstm
from latebloom.studies.local import train_all
from latebloom.tasks import WordProblem

RECURRENCES = ("lstm", "gru", "slstm", "min_gru", "mamba2", "mamba3", "delta_net", "gated_delta_net")
"""One stack for each."""
RUNS = 9
"""Runs of a stack, as in the tuning of a study."""
COUNTS = (1, 4, 8)
"""Numbers of processes."""
WARM_UP = 30
"""Steps before the benchmark, in which kernels are compiled."""


def bench_processes(device: torch.device, *, steps: int, tell: Tell) -> dict[str, Any]:
    """Return the seconds in which so many processes train the stacks, with set-up and tests."""
    seconds: dict[str, float] = {}
    # This process trains too, if it is the only one.
    warm_up = ((count, WARM_UP) for count in (max(COUNTS), 1))
    for count, length in (*warm_up, *((count, steps) for count in COUNTS)):
        tell(f"{len(RECURRENCES)} stacks of {RUNS} runs and {length} steps in {count} processes")
        configs = {
            f"{name}-{seed}": replace(_run(name, length), seed=seed) for name in RECURRENCES for seed in range(RUNS)
        }
        with TemporaryDirectory() as folder:
            began = time.perf_counter()
            failed = train_all(configs, Path(folder), workers=count, device=str(device))
            seconds[str(count)] = time.perf_counter() - began
        if failed:
            name, reason = next(iter(failed.items()))
            raise LatebloomError(f"processes: run {name} failed: {reason}")
    return {
        "stacks": len(RECURRENCES),
        "runs": RUNS,
        "steps": steps,
        "mps": has_mps(),
        "seconds": {count: seconds[count] for count in map(str, COUNTS)},
    }


def has_mps() -> bool:
    """Return whether NVIDIA's Multi-Process Service runs, with which kernels of several processes run side by side."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()


def _run(name: str, steps: int) -> RunConfig:
    phase = Phase(batch_size=64)
    return RunConfig(
        task=WordProblem(group="S3"),
        model=lstm(width=64, blocks=2, recurrence=Recurrence.named(name)),
        training=Training(steps=steps, delayed=phase, full=phase, check_every=steps, checkpoint_every=steps),
        evaluation=Evaluating(multiples=(1, 4), sequences=256),
    )
