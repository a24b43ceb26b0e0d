"""What is timed, how many operations it has, and how: in turns, of which the minimum and the median are kept."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from latebloom.config import RunConfig
from latebloom.engine.settings import Phase, Training
from latebloom.layers.precision import Precision
from latebloom.models.settings import hybrid
from latebloom.tasks import Composite

Advance = Callable[[], Any]
"""Does one step. It may return before the device has finished."""
Tell = Callable[[str], None]
TURNS = 5
LENGTH = 15
"""A composite sequence of 15 items has 25 tokens."""


def bench_config(*, width: int = 64, batch: int = 64, length: int = LENGTH, precision: Precision = "tf32") -> RunConfig:
    """Return a joint run of the hybrid, in which attention is enabled from the first step."""
    phase = Phase(batch_size=batch)
    training = Training(steps=10**9, length=max(25, length), full=phase, delayed=phase, precision=precision)
    return RunConfig(task=Composite(), model=hybrid(width=width), training=training)


def step_operations(config: RunConfig, length: int) -> float:
    """Return the floating-point operations of all matrix products of one step with attention enabled.

    The backward pass takes two products for each product of the forward pass.
    """
    model, task = config.model, config.task
    tokens, width = task.token_count(length), model.width
    weights = {"r": 8 * width**2, "a": 4 * width**2 + tokens * width, "m": 8 * width**2}
    if model.attention.look_back:
        weights["a"] += width**2
    each_token = sum(weights[letter] for block in model.layout_blocks for part in block for letter in part)
    supervised = task.batch(0, "train", 0, length=length, size=1).targets.shape[1]
    per_sequence = tokens * each_token + supervised * width * task.vocabulary_size
    return 3 * 2 * config.training.full.batch_size * per_sequence


@dataclass
class Arm:
    """A program to time: what `build` returns does one step of `runs` runs."""

    name: str
    build: Callable[[], Advance]
    runs: int = 1
    seconds: list[float] = field(default_factory=list)
    """The time of one step, for each turn."""
    cold_seconds: float = 0.0
    """From the start to the end of the third step: building, compiling, capturing."""
    peak_bytes: int = 0

    @property
    def per_second(self) -> float:
        """Steps per second in the best turn, summed over the runs."""
        return self.runs / min(self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "step_ms": {"minimum": 1e3 * min(self.seconds), "median": 1e3 * median(self.seconds)},
            "seed_steps_per_second": self.per_second,
            "cold_seconds": self.cold_seconds,
            "peak_memory_mb": self.peak_bytes / 1e6 or None,
        }


def take_turns(arms: list[Arm], device: torch.device, *, seconds: float, tell: Tell) -> None:
    """Build every arm, and then time each for about `seconds` in each of several turns."""
    on_gpu = device.type == "cuda"
    ready: list[tuple[Arm, Advance, int]] = []
    for arm in arms:
        tell(f"{arm.name}: starting")
        if on_gpu:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if on_gpu else 0
        started = time.perf_counter()
        advance = arm.build()
        timed(advance, 3, device)
        arm.cold_seconds = time.perf_counter() - started
        once = timed(advance, 2, device)
        ready.append((arm, advance, max(2, round(seconds / max(once, 1e-6)))))
        arm.peak_bytes = torch.cuda.max_memory_allocated(device) - before if on_gpu else 0
    for turn in range(TURNS):
        for arm, advance, steps in ready:
            tell(f"{arm.name}: turn {turn + 1} of {TURNS}")
            arm.seconds.append(timed(advance, steps, device))


def timed(advance: Advance, steps: int, device: torch.device) -> float:
    """Return the mean time of a step in seconds, with all of its work on the device done."""
    _wait(device)
    started = time.perf_counter()
    last: Any = None
    for _ in range(steps):
        last = advance()
    if hasattr(last, "block_until_ready"):  # JAX has a queue of its own, before that of the device
        last.block_until_ready()
    _wait(device)
    return (time.perf_counter() - started) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def product_peak(device: torch.device, size: int, seconds: float = 0.5) -> float:
    """Return the floating-point operations per second of a large float32 matrix product, as torch is set now."""
    left, right = torch.randn(2, size, size, device=device)
    timed(lambda: left @ right, 1, device)  # cold
    started, times = time.perf_counter(), list[float]()
    while not times or time.perf_counter() - started < seconds:
        times.append(timed(lambda: left @ right, 3, device))
    return 2 * size**3 / min(times)
