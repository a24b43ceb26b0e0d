"""Several runs on this machine: one process per run on CPU cores, or stacks on a GPU."""

import json
import multiprocessing as mp
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig, config_from
from latebloom.engine.environment import choose_device
from latebloom.engine.folder import RunFolder
from latebloom.engine.loop import Progress, TrainedRun, run
from latebloom.errors import InterruptedRun, LatebloomError
from latebloom.studies.stacks import log_error, run_in_stacks

ATTEMPTS = 3
"""How often a run is started if its process dies."""


@dataclass(frozen=True)
class _Job:
    name: str
    config: str
    """JSON, which a process can read before it has imported the classes of a plugin."""
    folder: Path
    device: str | None


def run_all(
    configs: dict[str, RunConfig],
    folder: Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    observe: Callable[[str, Progress], None] = lambda name, seen: None,
) -> dict[str, TrainedRun]:
    """Train every configuration in `folder/name`; finished runs are loaded, interrupted runs continue.

    On a GPU, runs of one shape are trained as one program. On a CPU, each run has a process with one thread, which is
    much faster than several threads per process.
    """
    failures = train_all(configs, folder, workers=workers, device=device, observe=observe)
    if failures:
        raise LatebloomError("; ".join(f"run {name} failed: {reason}" for name, reason in failures.items()))
    return {name: TrainedRun.load(folder / name) for name in configs}


def train_all(
    configs: dict[str, RunConfig],
    folder: Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    observe: Callable[[str, Progress], None] = lambda name, seen: None,
) -> dict[str, str]:
    """Train like `run_all`, but return the reason for each run that failed instead of raising."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return run_in_stacks(configs, folder, chosen, observe)
    return _run_in_processes(configs, folder, workers, device, observe)


def _run_in_processes(
    configs: dict[str, RunConfig],
    folder: Path,
    workers: int | None,
    device: str | None,
    observe: Callable[[str, Progress], None],
) -> dict[str, str]:
    """Return the reason for each run that failed."""
    jobs = {name: _Job(name, json.dumps(config.to_json()), folder / name, device) for name, config in configs.items()}
    waiting = [job for job in jobs.values() if not RunFolder(job.folder).is_finished]
    deaths: dict[str, int] = {}
    workers = workers or usable_cores()
    running: dict[str, _Worker] = {}
    failures: dict[str, str] = {}

    def stop_all() -> None:
        for worker in list(running.values()):
            worker.stop()

    with environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"), on_stop_signal(stop_all) as stop_requested:
        while running or (waiting and not stop_requested()):
            while waiting and len(running) < workers and not stop_requested():
                job = waiting.pop(0)
                running[job.name] = _Worker(job)
                if stop_requested():  # the signal came while it was being started
                    running[job.name].stop()
            for name in _ready(running):
                try:
                    message = running[name].messages.recv()
                except (EOFError, OSError):  # the process has ended, perhaps while sending
                    status = running.pop(name).end()
                    if status == 0 or name in failures:
                        continue
                    deaths[name] = deaths.get(name, 0) + 1
                    if deaths[name] < ATTEMPTS:  # killed, perhaps for memory: it continues from its checkpoint
                        waiting.append(jobs[name])
                        continue
                    message = f"its process ended {ATTEMPTS} times, at last with status {status}"
                if isinstance(message, str):
                    failures[name] = message
                    message = Progress.of_failed(configs[name].training.steps)
                if not stop_requested():
                    observe(name, message)
    if stop_requested():
        raise InterruptedRun(f"stopped; the progress is saved in {folder}")
    return failures


class _Worker:
    """A process that trains a run, and the pipe for its messages.

    Each process has its own pipe, because a process that is killed while sending would break a shared one.
    """

    def __init__(self, job: _Job) -> None:
        context = _context()
        self.messages, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(job, sender), daemon=True)
        self._process.start()
        sender.close()  # so that the end of the process is an end of file here

    def stop(self) -> None:
        """Make the process save and stop."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGTERM)

    def end(self) -> int | None:
        """Wait for the process and return its exit status."""
        self._process.join()
        self.messages.close()
        return self._process.exitcode


def _context() -> Any:
    """Return the start method: fork a server that has only imported torch.

    Importing torch again takes seconds, and a fork of this process, which has used torch, may hang in its thread pools.
    """
    if sys.platform != "linux":  # on other systems, an import may start threads
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # torch imports the latter for the first optimizer
    return context


def _ready(running: dict[str, _Worker]) -> list[str]:
    """Return the workers with a message or an ended process; wait a moment for the first."""
    names = {worker.messages: name for name, worker in running.items()}
    return [names[pipe] for pipe in wait(list(names), timeout=0.1) if isinstance(pipe, Connection)]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: _Job, messages: "Connection[Progress | str, object]") -> None:
    """Train a run in a worker process."""
    import torch

    torch.set_num_threads(1)
    parent = os.getppid()

    def send(message: Progress | str) -> None:
        try:
            messages.send(message)
        except BrokenPipeError:
            has_parent = False
        else:
            has_parent = os.getppid() == parent
        if not has_parent and isinstance(message, Progress):  # the parent has ended: save and stop
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        run(config_from(json.loads(job.config)), job.folder, device=job.device, observe=send)
    except InterruptedRun:
        send("stopped")
    except LatebloomError as error:
        send(str(error))
    except Exception:
        send(f"see {log_error(job.folder, traceback.format_exc())}")


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


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Call `stop` once on Ctrl-C or SIGTERM; yield a function that returns whether that has happened."""
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if not received:  # the terminal sends a second Ctrl-C to the workers too
            received.append(number)
            stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
