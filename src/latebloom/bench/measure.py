"""Timing that can be trusted on a noisy machine: arms take turns in one run, and the least and the median are kept."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch


@dataclass
class Arm:
    """Something to time: `advance` does `runs` runs' step once."""

    name: str
    build: Callable[[], Callable[[], Any]]
    runs: int = 1
    seconds: list[float] = field(default_factory=list)
    """Of one step, for each turn."""
    cold_seconds: float = 0.0
    """From nothing to the third step: building, compiling, capturing."""
    peak_bytes: int = 0

    @property
    def per_second(self) -> float:
        """Steps of a run a second, all runs counted, in the best turn."""
        return self.runs / min(self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "step_ms": {"minimum": 1e3 * min(self.seconds), "median": 1e3 * median(self.seconds)},
            "seed_steps_per_second": self.per_second,
            "cold_seconds": self.cold_seconds,
            "peak_memory_mb": self.peak_bytes / 1e6 or None,
        }


def take_turns(
    arms: list[Arm], device: torch.device, *, turns: int, seconds: float, tell: Callable[[str], None]
) -> None:
    """Time every arm `turns` times for about `seconds` each, one after the other, again and again."""
    ready: list[tuple[Arm, Callable[[], Any], int]] = []
    for arm in arms:
        tell(f"{arm.name}: starting")
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        started = time.perf_counter()
        advance = arm.build()
        for _ in range(3):
            advance()
        wait(device)
        arm.cold_seconds = time.perf_counter() - started
        once = _timed(advance, 2, device)
        ready.append((arm, advance, max(2, round(seconds / max(once, 1e-6)))))
        if device.type == "cuda":
            arm.peak_bytes = torch.cuda.max_memory_allocated(device) - before
    for turn in range(turns):
        for arm, advance, steps in ready:
            tell(f"{arm.name}: turn {turn + 1} of {turns}")
            arm.seconds.append(_timed(advance, steps, device))


def _timed(advance: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Seconds of one of several steps."""
    wait(device)
    started = time.perf_counter()
    for _ in range(steps):
        advance()
    wait(device)
    return (time.perf_counter() - started) / steps


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def product_peak(device: torch.device, size: int) -> float:
    """Floating-point operations a second of one large matrix product in float32, as torch is set now."""
    left, right = torch.randn(2, size, size, device=device)
    _timed(lambda: left @ right, 1, device)  # cold
    best = min(_timed(lambda: left @ right, 3, device) for _ in range(5))
    return 2 * size**3 / best
