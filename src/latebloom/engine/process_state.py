"""State of the process that a run changes and restores: random numbers, signals, memory."""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def preserve_torch_state(device: torch.device) -> Iterator[None]:
    """Restore torch's generators, current GPU and deterministic mode when the context ends."""
    devices = [device] if device.type == "cuda" else []
    mode = torch.get_deterministic_debug_mode()
    try:
        with torch.random.fork_rng(devices=devices), torch.cuda.device(device) if devices else nullcontext():
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in the process while the context lasts.

    A step on a CPU frees tens of megabytes, and the next one allocates as many. Returning them to the system in between
    costs a page fault for every page.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # not glibc
        yield
        return
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST)
    try:
        yield
    finally:  # the value that glibc itself sets after a large block is freed; its initial value is slower
        library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)
        library.malloc_trim(0)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # constants of malloc.h
_LARGEST = 32 * 2**20  # the largest threshold that glibc accepts


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals at which a run saves and stops."""


@contextmanager
def stop_requests(*, second_stops_at_once: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C, SIGTERM or SIGHUP was received; a second Ctrl-C raises by default.

    SIGHUP is sent when the terminal closes, and is ignored under nohup.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield requested.is_set
        return

    def handle(number: int, frame: object) -> None:
        if second_stops_at_once and requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in STOP_SIGNALS if not (under_nohup and number == signal.SIGHUP)]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield requested.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
