"""Several runs on this machine: one process per run on CPU cores, or stacks on a GPU."""

import multiprocessing as mp
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from latebloom.config import OtherRun
from latebloom.engine.environment import choose_device
from latebloom.engine.files import make_folder
from latebloom.engine.lock import is_at
from latebloom.engine.outcome import Progress
from latebloom.engine.process_state import STOP_SIGNALS
from latebloom.errors import InterruptedRun
from latebloom.studies.scheduler import Ended, Order, Workers, train_order, train_waves
from latebloom.studies.sockets import keep_sockets_apart
from latebloom.studies.stacks import NO_STOPS, Configs, Observe, Stops, run_in_stacks, stop_of, unfinished

STACKS_AT_ONCE = 4
"""Processes that train a stack each on one GPU."""
Message = tuple[str, Progress] | dict[str, str]
"""What a worker sends: the progress of one of its runs or, at the end, the reason for each run that failed."""


def train_all(
    configs: Configs,
    folder: Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    observe: Observe = lambda name, seen: None,
    stops: Stops = NO_STOPS,
) -> dict[str, str]:
    """Train every configuration in `folder/name` that is not finished, to its end or to its pause in `stops`; return
    the reason for each run that failed.

    On a CPU, each run has a process with one thread, which is much faster than several threads per process. On a GPU,
    runs of one shape are trained as one program, a stack; several processes train a stack each, so that one can be set
    up and tested while another trains.
    """
    chosen = choose_device(device)
    if chosen.type == "cuda":
        # A language model fills a GPU.
        at_once = workers or (1 if any(isinstance(one, OtherRun) for one in configs.values()) else STACKS_AT_ONCE)

        def train_at_once(waves: list[Configs], number: int) -> dict[str, str]:
            return train_in_processes(waves, folder, chosen, number, observe, stops)

        return run_in_stacks(
            configs, folder, chosen, observe, stops=stops, at_once=at_once, train_at_once=train_at_once
        )
    waves = [{name: config} for name, config in unfinished(configs, folder, stops).items()]
    return train_in_processes(waves, folder, chosen, workers or usable_cores(), observe, stops)


def train_in_processes(
    waves: list[Configs],
    folder: Path,
    device: torch.device,
    at_once: int,
    observe: Observe,
    stops: Stops = NO_STOPS,
) -> dict[str, str]:
    """Train each wave in a process of its own, `at_once` at a time; return the reason for each run that failed."""
    others = {type(config) for wave in waves for config in wave.values() if isinstance(config, OtherRun)}
    with environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"):
        preload = [module for kind in others for module in kind.preload]
        return train_waves(waves, folder, _Processes(folder, device, observe, stops, preload), at_once, observe)


class _Processes(Workers):
    """A process for each run or, on a GPU, for each stack.

    Each has its own pipe for its messages, because a process that is killed while sending would break a shared one.
    """

    def __init__(
        self, folder: Path, device: torch.device, observe: Observe, stops: Stops, preload: Sequence[str] = ()
    ) -> None:
        self._folder, self._device, self._observe, self._stops = folder, device, observe, stops
        self._context = process_context(preload)
        self._running: dict[Any, tuple[Configs, Any]] = {}
        self._failures: dict[str, dict[str, str]] = {}
        self._not_started: list[Ended] = []
        make_folder(folder)
        self._place = os.stat(folder)

    def start(self, wave: Configs) -> None:
        if not is_at(self._folder, self._place):  # a worker would make it again, or write into a stranger's
            reason = f"{self._folder} was moved, removed or replaced before the run could start"
            self._not_started.append(Ended(wave, dict.fromkeys(wave, reason)))
            return
        messages, sender = self._context.Pipe(duplex=False)
        order = Order.of(wave, stop_of(wave, self._stops))
        process = self._context.Process(target=_work, args=(order, self._folder, self._device, sender), daemon=True)
        try:
            # A signal to all processes of a terminal would end the fork server, which does not handle it. Processes
            # inherit the mask; a worker unblocks the signals as soon as it can handle them.
            with _signals_blocked():
                process.start()
        except (EOFError, ConnectionError):  # the fork server was killed
            messages.close()
            self._not_started.append(Ended(wave, {}, ", before it could start"))
        else:
            self._running[messages] = wave, process
        finally:
            sender.close()  # so that the end of the process is an end of file here

    def stop(self) -> None:
        for _, process in self._running.values():
            process.terminate()

    def take_ended(self) -> Iterator[Ended]:
        while self._not_started:
            yield self._not_started.pop()
        ready: list[Any] = wait(list(self._running), timeout=0.1)
        for messages in ready:
            wave, process = self._running[messages]
            first = next(iter(wave))
            try:
                message = messages.recv()
            except (EOFError, OSError):  # the process has ended, perhaps while sending
                del self._running[messages]
                process.join()
                messages.close()
                failures = self._failures.pop(first, None)
                died = f", at last with status {process.exitcode}" if failures is None else None
                yield Ended(wave, failures or {}, died)
            else:
                if isinstance(message, dict):
                    self._failures[first] = message
                else:
                    self._observe(*message)


def process_context(preload: Sequence[str] = ()) -> Any:
    """Return the way to start processes: fork a server that has only imported torch, and what else is to be preloaded.

    Importing torch again takes seconds, and a fork of this process, which has used torch, may hang in its thread pools.
    """
    if sys.platform != "linux":  # on other systems, an import may start threads
        return mp.get_context("spawn")
    keep_sockets_apart()
    context = mp.get_context("forkserver")
    # torch imports torch._dynamo for the first optimizer.
    context.set_forkserver_preload([__name__, "torch._dynamo", *preload])
    return context


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(order: Order, folder: Path, device: torch.device, messages: "Connection[Message, object]") -> None:
    """Train a run or a stack in a worker process; the last message has the reason for each run that failed."""
    torch.set_num_threads(1)
    threading.Thread(target=_stop_when_closed, args=(messages.fileno(),), daemon=True).start()

    def send(message: Message) -> None:
        with suppress(BrokenPipeError):  # the study has ended, and this process stops too
            messages.send(message)

    with suppress(InterruptedRun, KeyboardInterrupt):  # the latter before the run has begun
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        send(train_order(order, folder, device, lambda name, seen: send((name, seen))))


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals that stop a run while processes are started; they are delivered at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # it unblocks two of them when it starts its process
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop_when_closed(pipe: int) -> None:
    """Wait until the other end of a pipe is closed, because its process has ended; then save and stop."""
    watched = select.poll()
    watched.register(pipe, 0)  # 0: wait for errors alone
    watched.poll()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables while the context lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
