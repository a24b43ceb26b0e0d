"""Runs on a Ray cluster: a task for each run, or for each stack of runs where there are GPUs."""

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.folder import RunFolder
from latebloom.engine.outcome import Progress
from latebloom.errors import ConfigError, InterruptedRun, LatebloomError, catch_full_disk
from latebloom.studies.local import ATTEMPTS, on_stop_signal
from latebloom.studies.parcel import pack, unpack
from latebloom.studies.ray_worker import (
    SECONDS_BETWEEN_REPORTS,
    Coordinator,
    Done,
    Order,
    folders,
    runs_that_fit_there,
    train,
)
from latebloom.studies.stacks import Configs, log_error, plan_waves


def train_on_ray(
    configs: dict[str, RunConfig],
    folder: Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    observe: Callable[[str, Progress], None] = lambda name, seen: None,
) -> dict[str, str]:
    """Train every configuration in `folder/name`, inside a `ray_cluster`; return the reason for each failed run."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, waves = _plan(configs, folder, device)
    if not waves:
        return {}
    token = folder.absolute() / f".driver-{uuid.uuid4().hex}"
    token.touch()
    try:
        return _Driver(configs, folder, token, kind, observe).finish(waves, workers or len(waves))
    finally:
        token.unlink(missing_ok=True)


def _plan(configs: Configs, folder: Path, device: str | None) -> tuple[str, list[Configs]]:
    """Return the kind of device, and the runs to train at once: single runs on CPUs, stacks for all GPUs."""
    import ray

    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    kind = device or ("cuda" if gpus else "cpu")
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device: {kind!r} cannot be chosen on Ray; choices: cpu, cuda")
    if resources.get("GPU" if kind == "cuda" else "CPU", 0) < 1:
        raise ConfigError(f"device: {kind!r} is not available in the Ray cluster")
    if kind == "cpu":
        return kind, [{name: c} for name, c in configs.items() if not RunFolder(folder / name).is_finished]
    measure = ray.remote(num_gpus=1)(runs_that_fit_there)
    left = sum(not RunFolder(folder / name).is_finished for name in configs)
    share = max(1, -(-left // gpus))
    return kind, plan_waves(configs, folder, lambda config: min(share, ray.get(measure.remote(Order.of({"": config})))))


class _Driver:
    """Sends waves of runs to the cluster, and collects their results."""

    def __init__(
        self, configs: Configs, folder: Path, token: Path, kind: str, observe: Callable[[str, Progress], None]
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.configs, self.folder, self.token, self.observe = configs, folder, token, observe
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        self.coordinator: Any = ray.remote(num_cpus=0)(Coordinator).options(scheduling_strategy=here).remote()
        # No retries by Ray: the driver starts a run again, so that deaths are counted as without Ray.
        self.train: Any = ray.remote(num_cpus=1, num_gpus=int(kind == "cuda"), max_retries=0)(train)
        self.kind = kind
        self.running: dict[Any, Configs] = {}
        self.deaths: dict[str, int] = {}
        self.failures: dict[str, str] = {}

    def finish(self, waiting: list[Configs], at_once: int) -> dict[str, str]:
        import ray

        try:
            with on_stop_signal(lambda: None) as stop_requested:
                is_stopping = False
                while self.running or (waiting and not stop_requested()):
                    while waiting and len(self.running) < at_once and not stop_requested():
                        self._start(waiting.pop(0))
                    if stop_requested() and not is_stopping:
                        is_stopping = True
                        self._stop()
                    if not self.running:
                        break  # the signal came before the first wave was started
                    ended, _ = ray.wait(list(self.running), timeout=SECONDS_BETWEEN_REPORTS)
                    self._take_progress()
                    for task in ended:
                        wave = self.running.pop(task)
                        if not self._gather(task, wave) and not stop_requested():
                            self._count_death(wave, waiting)
        finally:
            ray.kill(self.coordinator)
        if stop_requested():
            raise InterruptedRun(f"stopped; the progress is saved in {self.folder}")
        return self.failures

    def _take_progress(self) -> None:
        import ray

        progress: Any = ray.get(self.coordinator.take_progress.remote())
        for name, latest in progress.items():
            self.observe(name, latest)

    def _start(self, wave: Configs) -> None:
        parcel = pack(self.folder, folders(wave))
        order = Order.of(wave)
        self.running[self.train.remote(order, self.token, self.kind, parcel, self.coordinator, sys.argv)] = wave

    def _stop(self) -> None:
        """Stop all waves: those in training save and stop through the coordinator, those that wait are cancelled.

        Cancelling a wave in training would interrupt it a second time, which stops it without saving.
        """
        import ray

        in_training: Any = ray.get(self.coordinator.request_stop.remote())
        for task, wave in self.running.items():
            if next(iter(wave)) not in in_training:
                ray.cancel(task)

    def _gather(self, task: Any, wave: Configs) -> bool:
        """Collect the result of a task; return False if its process died or was stopped."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            done: Done = ray.get(task)
        except RayTaskError as error:
            log = log_error(self.folder / next(iter(wave)), str(error))
            self._fail(dict.fromkeys(wave, f"{type(error.cause).__name__}, see {log}"))
            return True
        except RayError:
            return False
        if done.parcel is not None:
            try:
                with catch_full_disk(self.folder):
                    unpack(done.parcel, self.folder, folders(wave))
            except LatebloomError as error:
                self._fail(dict.fromkeys(wave, str(error)))
                return True
        self._fail(done.failures)
        return not done.stopped

    def _count_death(self, wave: Configs, waiting: list[Configs]) -> None:
        first = next(iter(wave))
        self.deaths[first] = self.deaths.get(first, 0) + 1
        if self.deaths[first] < ATTEMPTS:  # killed, or its machine is gone: it continues from its checkpoint
            waiting.append(wave)
        else:
            self._fail(dict.fromkeys(wave, f"its process ended {ATTEMPTS} times"))

    def _fail(self, failures: dict[str, str]) -> None:
        self.failures |= failures
        for name in failures:
            self.observe(name, Progress.of_failed(self.configs[name].training.steps))
