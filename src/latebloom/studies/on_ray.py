"""Runs on a Ray cluster: a task for each run, or for each stack of runs where there are GPUs."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latebloom.config import RunConfig
from latebloom.engine.files import TEMPORARY, remove_incomplete
from latebloom.engine.stacks import stack_folders
from latebloom.errors import ConfigError, LatebloomError, catch_write_errors
from latebloom.studies.ray_worker import (
    SECONDS_BETWEEN_REPORTS,
    SECONDS_TO_ANSWER,
    Coordinator,
    Done,
    pack,
    runs_that_fit_there,
    train,
    unpack,
)
from latebloom.studies.scheduler import Ended, Order, Workers, train_waves
from latebloom.studies.stacks import NO_STOPS, Configs, Observe, Stops, log_error, plan_waves, stop_of, unfinished


def train_on_ray(
    configs: Configs,
    folder: Path,
    *,
    workers: int | None = None,
    device: str | None = None,
    observe: Observe = lambda name, seen: None,
    stops: Stops = NO_STOPS,
) -> dict[str, str]:
    """Train every configuration in `folder/name`, to its end or to its pause in `stops`, inside a `ray_cluster`; return
    the reason for each failed run."""
    import ray

    folder.mkdir(parents=True, exist_ok=True)
    remove_incomplete(folder)
    kind, waves = _plan(configs, folder, device, stops)
    if not waves:
        return {}
    token = folder.absolute() / f"{TEMPORARY}driver-{uuid.uuid4().hex}"
    token.touch()
    tasks = _Tasks(folder, token, kind, observe, stops)
    try:
        return train_waves(waves, folder, tasks, workers or len(waves), observe)
    finally:
        ray.kill(tasks.coordinator)
        token.unlink(missing_ok=True)


def kind_of_device(device: str | None) -> str:
    """Return the kind of device that the cluster trains on: the one that is named, or GPUs if it has any."""
    import ray

    resources = ray.cluster_resources()
    kind = device or ("cuda" if int(resources.get("GPU", 0)) else "cpu")
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device: {kind!r} cannot be chosen on Ray; choices: cpu, cuda")
    if resources.get("GPU" if kind == "cuda" else "CPU", 0) < 1:
        raise ConfigError(f"device: {kind!r} is not available in the Ray cluster")
    return kind


def _plan(configs: Configs, folder: Path, device: str | None, stops: Stops) -> tuple[str, list[Configs]]:
    """Return the kind of device, and the runs to train at once: single runs on CPUs, stacks for all GPUs."""
    import ray

    kind, gpus = kind_of_device(device), int(ray.cluster_resources().get("GPU", 0))
    left = unfinished(configs, folder, stops)
    if kind == "cpu":
        return kind, [{name: config} for name, config in left.items()]
    measure = ray.remote(num_gpus=1)(runs_that_fit_there)
    share = max(1, -(-len(left) // gpus))

    def fit(config: RunConfig, wanted: int) -> int:
        return min(share, ray.get(measure.remote(Order.of({"": config}))))

    return kind, plan_waves(configs, folder, fit, stops)


class _Tasks(Workers):
    """A task of the cluster for each wave."""

    def __init__(self, folder: Path, token: Path, kind: str, observe: Observe, stops: Stops) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._folder, self._token, self._kind, self._observe, self._stops = folder, token, kind, observe, stops
        # Not `soft`, with which Ray may start it on any machine: it would be lost with a machine that leaves.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=-1)(Coordinator)
        self.coordinator: Any = actor.options(scheduling_strategy=here).remote()
        # No retries by Ray: the driver starts a run again, so that deaths are counted as without Ray.
        self._train: Any = ray.remote(num_cpus=1, num_gpus=int(kind == "cuda"), max_retries=0)(train)
        self._running: dict[Any, tuple[Configs, list[str]]] = {}
        self._in_training: set[str] = set()
        self._is_stopping = self._has_cancelled = False

    def start(self, wave: Configs) -> None:
        folders = [*wave, *stack_folders(wave)]  # the checkpoints of a stack have their own
        parcel = pack(self._folder, folders)
        order = Order.of(wave, stop_of(wave, self._stops))
        task = self._train.remote(order, self._token, self._kind, folders, parcel, self.coordinator, sys.argv)
        self._running[task] = wave, folders

    def stop(self) -> None:
        self._is_stopping = True

    def take_ended(self) -> Iterator[Ended]:
        import ray

        ended, _ = ray.wait(list(self._running), timeout=SECONDS_BETWEEN_REPORTS)
        self._exchange()
        for task in ended:
            yield self._gather(task, *self._running.pop(task))

    def _exchange(self) -> None:
        """Pass progress on and, after `stop`, stop all waves: those in training save and stop through the coordinator,
        those that wait are cancelled.

        Cancelling a wave in training would interrupt it a second time, which stops it without saving.
        """
        import ray
        from ray.exceptions import RayError

        try:
            asked = self.coordinator.exchange.remote(self._is_stopping)
            progress, in_training = ray.get(asked, timeout=SECONDS_TO_ANSWER)
        except RayError:  # the coordinator may be restarting: its process was killed, or its connection was lost
            return
        for name, latest in progress.items():
            self._observe(name, latest)
        self._in_training |= in_training
        if self._is_stopping and not self._has_cancelled:
            self._has_cancelled = True
            for task, (wave, _) in self._running.items():
                if next(iter(wave)) not in self._in_training:
                    ray.cancel(task)

    def _gather(self, task: Any, wave: Configs, folders: list[str]) -> Ended:
        """Collect the result of a task."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            done: Done = ray.get(task)
        except RayTaskError as error:
            log = log_error(self._folder / next(iter(wave)), str(error))
            return Ended(wave, dict.fromkeys(wave, f"{type(error.cause).__name__}, see {log}"))
        except RayError:
            return Ended(wave, died="")
        for name, latest in done.progress.items():
            self._observe(name, latest)
        if done.parcel is not None:
            try:
                with catch_write_errors(self._folder):
                    unpack(done.parcel, self._folder, folders)
            except LatebloomError as error:
                return Ended(wave, dict.fromkeys(wave, str(error)))
        return Ended(wave, done.failures, died="" if done.stopped else None)
