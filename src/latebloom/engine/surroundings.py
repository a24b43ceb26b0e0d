"""What a run borrows from the process it runs in, and gives back: random numbers, signals, memory."""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def own_torch_state(device: torch.device) -> Iterator[None]:
    """Training seeds torch's generators, makes its GPU the current one, and tells torch for moments to add in a fixed
    order; all of it is left as the caller had it, also where a step fails in such a moment."""
    devices = [device] if device.type == "cuda" else []
    order = torch.get_deterministic_debug_mode()
    try:
        with torch.random.fork_rng(devices=devices), torch.cuda.device(device) if devices else nullcontext():
            yield
    finally:
        torch.set_deterministic_debug_mode(order)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Freed memory stays with the process until the run ends. A step on a CPU frees tens of megabytes and the next one
    takes as many; a C library that returns them in between pays for every page of them again, at each step."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # another C library than glibc
        yield
        return
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST)
    try:
        yield
    finally:  # where glibc itself comes to in a process that has freed a large block; its first values were slower
        library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)
        library.malloc_trim(0)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_LARGEST = 32 * 2**20  # the most that glibc takes as a size from which memory is not kept


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
