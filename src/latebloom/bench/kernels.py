"""Every kernel of a training step of stacked runs: launches, time, bytes, and how close it is to the memory's limit.

`measure_kernels` runs this file under NVIDIA's profiler `ncu`, which counts the bytes that each kernel moves. The step
is not captured in a CUDA graph, so that the profiler sees every launch; the kernels are the same.
"""

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from latebloom.bench.arms import OneLength
from latebloom.bench.measure import LENGTH, bench_config
from latebloom.engine.trainer import Trainer
from latebloom.errors import ConfigError
from latebloom.layers.precision import Precision, precision
from latebloom.layers.recurrence import Recurrence

READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
WARM_UP = 3
"""Steps before the one that is measured."""
COPY_BYTES = 1 << 32
"""The size of the copy that measures the memory's bandwidth."""
LONGEST_NAME = 60


def measure_kernels(runs: int, recurrence: str, mode: Precision) -> dict[str, Any]:
    """Return the kernels of one step, the slowest first, with the bandwidth of a large copy."""
    profiler = shutil.which("ncu")
    if profiler is None:
        raise ConfigError("kernels: --kernels needs NVIDIA's Nsight Compute, and ncu is not on the PATH")
    options = ["--metrics", f"{READ},{WRITTEN},{TIME}", "--clock-control", "none", "--cache-control", "none"]
    shown = ["--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
    step = [sys.executable, "-m", __name__, str(runs), recurrence, mode]
    ran = subprocess.run([profiler, *options, *shown, *step], capture_output=True, text=True)
    if ran.returncode:
        raise ConfigError(f"kernels: ncu failed: {(ran.stderr or ran.stdout).strip()[-500:]}")
    kernels = read_kernels(ran.stdout.splitlines())
    if not kernels:
        raise ConfigError(f"kernels: ncu reported none: {ran.stdout.strip()[-500:]}")
    return {"runs": runs, "recurrence": recurrence, "copy_bytes_per_second": copy_speed(), "kernels": kernels}


def read_kernels(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the kernels in the output of `ncu --csv --page raw`, launches of one name together, the slowest first."""
    rows = csv.DictReader(line for line in lines if line.startswith('"'))
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if not row["ID"]:  # the row of units
            continue
        name = short_name(row["Kernel Name"])
        one = found.setdefault(name, {"name": name, "launches": 0, "seconds": 0.0, "read": 0, "written": 0})
        one["launches"] += 1
        one["seconds"] += _number(row[TIME]) * 1e-9
        one["read"] += round(_number(row[READ]))
        one["written"] += round(_number(row[WRITTEN]))
    return sorted(found.values(), key=lambda one: -one["seconds"])


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def short_name(name: str) -> str:
    """Return a kernel's name without its arguments; of an elementwise kernel of torch, with the functor's name."""
    functors = re.findall(r"(\w+?)_(?:kernel_cuda|kernel_impl|kernel)\b|(\w*[Ff]unctor\w*)", name)
    head = re.split(r"[<(]", name.removeprefix("void "))[0].split("::")[-1]
    if "elementwise" in head and functors:
        head = f"{head}: {next(filter(None, functors[-1]))}"
    return head[:LONGEST_NAME]


def copy_speed() -> float:
    """Return the bytes that a large copy reads and writes per second."""
    source = torch.empty(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return 2 * COPY_BYTES / best


def profile_step(runs: int, recurrence: str, mode: Precision) -> None:
    """Do a few steps, and mark the last one for the profiler."""
    config = bench_config(precision=mode)
    config = replace(config, model=replace(config.model, recurrence=Recurrence.named(recurrence)))
    configs = [replace(config, seed=seed) for seed in range(runs)]
    with precision(mode):
        trainer = Trainer(configs, torch.device("cuda"), stacked=True, capture=False)
        trainer.stream = OneLength(config.task, config.seed, LENGTH)
        for _ in range(WARM_UP):
            trainer.advance()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        trainer.advance()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    profile_step(int(sys.argv[1]), sys.argv[2], sys.argv[3])  # pyright: ignore[reportArgumentType] (checked before)
