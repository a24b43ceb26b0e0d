"""Several runs on this machine, one process each, as many at once as there are cores."""

import multiprocessing as mp
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

from latebloom.config import RunConfig
from latebloom.errors import InterruptedRun, LatebloomError
from latebloom.studies.stacks import run_in_stacks
from latebloom.training.environment import choose_device
from latebloom.training.folder import RunFolder
from latebloom.training.loop import Progress, TrainedRun, run

ATTEMPTS = 3
"""How often a run is started whose process dies."""


@dataclass(frozen=True)
class _Job:
    name: str
    config: RunConfig
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
    """Train every configuration in `folder/name`; finished ones are not trained again, stopped ones go on.

    On a GPU runs of one shape are trained as one program. On a CPU each run has a process of one thread: two processes
    of two threads on two cores are far slower than two of one.
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
    """As `run_all`, but runs that fail do not raise: why those failed that did."""
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
    """Why those runs failed that did."""
    jobs = {name: _Job(name, config, folder / name, device) for name, config in configs.items()}
    waiting = [job for job in jobs.values() if not RunFolder(job.folder).is_finished]
    deaths: dict[str, int] = {}
    workers = workers or usable_cores()
    context = mp.get_context("spawn")  # a forked torch may hang in its thread pools
    events: Queue[tuple[str, Any]] = context.Queue()
    running: dict[str, BaseProcess] = {}
    failures: dict[str, str] = {}
    with _single_threaded(), _passing_stops_on(running) as stop_asked:
        while waiting or running:
            while waiting and len(running) < workers and not stop_asked():
                job = waiting.pop(0)
                running[job.name] = context.Process(target=_work, args=(job, events), daemon=True)
                running[job.name].start()
                if stop_asked():  # the signal came while it was being started
                    running[job.name].terminate()
            _drain(events, observe, failures)
            for name, process in list(running.items()):
                if not process.is_alive():
                    _drain(events, observe, failures)
                    del running[name]
                    if process.exitcode != 0 and name not in failures:
                        deaths[name] = deaths.get(name, 0) + 1
                        if deaths[name] < ATTEMPTS:  # killed, perhaps for memory: it goes on from its checkpoint
                            waiting.append(jobs[name])
                        else:
                            failures[name] = (
                                f"its process ended {ATTEMPTS} times, at last with status {process.exitcode}"
                            )
            if stop_asked() and not running:
                break
    if stop_asked():
        raise InterruptedRun(f"stopped; what was reached is saved in {folder}")
    return failures


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: _Job, events: "Queue[tuple[str, Any]]") -> None:
    """What a worker process does."""
    import torch

    torch.set_num_threads(1)
    parent = os.getppid()

    def tell(seen: Progress) -> None:
        if os.getppid() != parent:  # nobody waits for this any more: save and leave
            os.kill(os.getpid(), signal.SIGTERM)
        events.put((job.name, seen))

    try:
        run(job.config, job.folder, device=job.device, observe=tell)
    except InterruptedRun:
        events.put((job.name, "stopped"))
    except LatebloomError as error:
        events.put((job.name, str(error)))
    except Exception:
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "error.log").write_text(traceback.format_exc())
        events.put((job.name, f"see {job.folder / 'error.log'}"))


def _drain(
    events: "Queue[tuple[str, Any]]", observe: Callable[[str, Progress], None], failures: dict[str, str]
) -> None:
    """Hand on what the workers have said by now, waiting a moment for the first word."""
    words = []
    with suppress(Empty):
        words.append(events.get(timeout=0.1))
        while len(words) < 1000:  # a bound, so that talkative workers do not keep the others waiting
            words.append(events.get_nowait())
    for name, word in words:
        if isinstance(word, Progress):
            observe(name, word)
        else:
            failures[name] = word


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Workers started inside take one thread each, whatever the environment says."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _passing_stops_on(running: dict[str, BaseProcess]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C or SIGTERM asks every worker to save and stop; the parent waits for them."""
    asked: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        if asked:
            return  # a terminal has sent the second Ctrl-C to the workers too
        asked.append(number)
        for process in running.values():
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
