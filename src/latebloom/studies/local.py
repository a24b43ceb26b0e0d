"""Several runs on this machine, one process each, as many at once as there are cores."""

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
    """As JSON, because a process can read that before it knows the classes of a plugin."""
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
    """Train every configuration in `folder/name`; finished ones are kept and interrupted ones continue.

    On a GPU, runs of one shape are trained as one program. On a CPU, each run has a process with one thread: on two
    cores, two processes with two threads each are far slower.
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
    """Do what `run_all` does, but return the reason for each run that failed."""
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
    jobs = {name: _Job(name, json.dumps(config.to_json()), folder / name, device) for name, config in configs.items()}
    waiting = [job for job in jobs.values() if not RunFolder(job.folder).is_finished]
    deaths: dict[str, int] = {}
    workers = workers or usable_cores()
    running: dict[str, _Worker] = {}
    failures: dict[str, str] = {}

    def stop_all() -> None:
        for worker in list(running.values()):
            worker.stop()

    with environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"), heeding_stops(stop_all) as stop_asked:
        while running or (waiting and not stop_asked()):
            while waiting and len(running) < workers and not stop_asked():
                job = waiting.pop(0)
                running[job.name] = _Worker(job)
                if stop_asked():  # the signal came while it was being started
                    running[job.name].stop()
            for name in _ready(running):
                try:
                    word = running[name].words.recv()
                except (EOFError, OSError):  # its process has ended, perhaps within a message
                    status = running.pop(name).end()
                    if status == 0 or name in failures:
                        continue
                    deaths[name] = deaths.get(name, 0) + 1
                    if deaths[name] < ATTEMPTS:  # killed, perhaps for memory: it continues from its checkpoint
                        waiting.append(jobs[name])
                        continue
                    word = f"its process ended {ATTEMPTS} times, at last with status {status}"
                if isinstance(word, str):
                    failures[name] = word
                    word = Progress.of_failed(configs[name].training.steps)
                if not stop_asked():
                    observe(name, word)
    if stop_asked():
        raise InterruptedRun(f"stopped; what was reached is saved in {folder}")
    return failures


class _Worker:
    """A process that trains a run, and the pipe on which it reports.

    Each has its own pipe: if they shared one, a process that is killed within a message would damage it for all.
    """

    def __init__(self, job: _Job) -> None:
        context = _context()
        self.words, its_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(job, its_end), daemon=True)
        self._process.start()
        its_end.close()  # so that the end of the process is an end of file here

    def stop(self) -> None:
        """Ask it to save and stop."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGTERM)

    def end(self) -> int | None:
        """Wait for it and return its exit status."""
        self._process.join()
        self.words.close()
        return self._process.exitcode


def _context() -> Any:
    """Return how processes are started: as forks of a server that has imported torch and done nothing else.

    Importing torch again takes seconds, and a fork of this process may hang in the thread pools that torch has started.
    """
    if sys.platform != "linux":  # elsewhere also an import may start threads
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # torch imports the latter for the first optimizer
    return context


def _ready(running: dict[str, _Worker]) -> list[str]:
    """Return the workers that have sent something or have ended; wait a moment for the first."""
    names = {worker.words: name for name, worker in running.items()}
    return [names[words] for words in wait(list(names), timeout=0.1) if isinstance(words, Connection)]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: _Job, words: "Connection[Progress | str, object]") -> None:
    """Train a run in a worker process."""
    import torch

    torch.set_num_threads(1)
    parent = os.getppid()

    def say(word: Progress | str) -> None:
        try:
            words.send(word)
        except BrokenPipeError:
            is_heard = False
        else:
            is_heard = os.getppid() == parent
        if not is_heard and isinstance(word, Progress):  # the parent is gone: save and leave
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        run(config_from(json.loads(job.config)), job.folder, device=job.device, observe=say)
    except InterruptedRun:
        say("stopped")
    except LatebloomError as error:
        say(str(error))
    except Exception:
        say(f"see {log_error(job.folder, traceback.format_exc())}")


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the processes that are started within the context."""
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
def heeding_stops(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Call `stop` once on Ctrl-C or SIGTERM, which asks every worker to save and stop; the parent waits for them."""
    asked: list[int] = []

    def heed(number: int, frame: object) -> None:
        if not asked:  # a terminal has sent the second Ctrl-C to the workers too
            asked.append(number)
            stop()

    before = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
