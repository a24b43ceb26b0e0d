"""What a run borrows from the process it runs in, and gives back: random numbers, signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Training seeds torch's generators and makes its GPU the current one; the caller's are left as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.cuda.device(device) if devices else nullcontext():
        yield


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C and SIGTERM into a question that the loop asks between steps; a second Ctrl-C stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
