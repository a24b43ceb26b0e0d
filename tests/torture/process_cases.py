"""Processes that are killed while they train, and processes that meet in one folder."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from processes import trainer_of
from reference import Shared, assert_same, forked, status_of, train, train_stack

from latebloom import RunConfig
from latebloom.engine import loop
from latebloom.studies.local import train_all

NAMES: tuple[str, ...] = ("a", "b")
"""The runs of a study."""


def kill(rng: random.Random, folder: Path, shared: Shared) -> int:
    """Kill a run up to five times, and let it finish; return how many kills met a live process."""
    kills = _killed(rng, lambda: train(shared, folder), 0.2)
    train(shared, folder)
    assert_same(folder, shared.finished)
    return kills


def kill_stack(rng: random.Random, folder: Path, shared: Shared) -> int:
    """Kill a stack of two runs that saves often, and let it finish."""

    def work() -> None:
        loop.SECONDS_BETWEEN_CHECKPOINTS = rng.choice((0.0, 0.02, 20.0))
        train_stack(shared, folder)

    kills = _killed(rng, work, 0.3)
    train_stack(shared, folder)
    for name in shared.in_stack:
        assert_same(folder / name, shared.stack / name)
    return kills


def _killed(rng: random.Random, work: Callable[[], object], seconds: float) -> int:
    """Begin work up to five times and kill it within some seconds; return how many kills met a live process."""
    kills = 0
    for _ in range(rng.randint(1, 5)):
        child = forked(work)
        time.sleep(rng.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        status = status_of(child)
        assert status in (0, -signal.SIGKILL), f"it ended with {status}"
        kills += status == -signal.SIGKILL
        if status == 0:
            break
    return kills


def two_processes(rng: random.Random, folder: Path, shared: Shared) -> None:
    """Start two trainers in one folder: one wins, or the second finds the run finished; the result is whole."""
    first = forked(lambda: train(shared, folder))
    time.sleep(rng.uniform(0, 0.2))
    second = forked(lambda: train(shared, folder))
    ends = sorted((status_of(first), status_of(second)))
    assert ends in ([0, 0], [0, 3]), f"they ended with {ends}"
    assert_same(folder, shared.finished)


def kill_study(rng: random.Random, folder: Path, shared: Shared) -> int:
    """Kill the process of a study, or one of its workers, and give the same command again at once."""
    configs: dict[str, RunConfig] = dict.fromkeys(NAMES, shared.long_config)

    def work() -> None:
        failures = train_all(configs, folder, workers=2, device="cpu")
        assert failures == {}, failures

    kills = 0
    for _ in range(rng.randint(1, 2)):
        child = forked(work)
        worker = _wait_for_trainer(folder / rng.choice(list(configs)), child)
        time.sleep(rng.uniform(0, 1))
        kills += _kill_process(worker if rng.random() < 0.5 else child)
        if status_of(child) == 0:
            break
    assert status_of(forked(work)) == 0, "the study did not finish"
    for name in configs:
        assert_same(folder / name, shared.long)
    return kills


def kill_ray_worker(rng: random.Random, folder: Path, shared: Shared) -> int:
    """Kill the workers of a Ray cluster that train two runs."""

    def kill_some(child: int) -> int:
        kills = 0
        for name in NAMES:
            worker = _wait_for_trainer(folder / name, child)
            time.sleep(rng.uniform(0, 1.5))
            kills += _kill_process(worker)
        return kills

    return _on_ray(folder, shared, kill_some)


def remove_ray_node(rng: random.Random, folder: Path, shared: Shared) -> int:
    """Remove a node of a Ray cluster while it trains; another one arrives."""

    def remove(child: int) -> int:
        for name in NAMES:
            _wait_for_trainer(folder / name, child)
        time.sleep(rng.uniform(0, 1.5))
        machines = _machines(shared)
        machines.remove_node(rng.choice(list(machines.worker_nodes)), allow_graceful=False)
        _add_node(machines)
        return 1

    return _on_ray(folder, shared, remove)


DRIVER = """
import sys
from pathlib import Path
from latebloom import load_config
from latebloom.studies.on_ray import train_on_ray
from latebloom.studies.ray_cluster import ray_cluster

address, config, folder, *names = sys.argv[1:]
with ray_cluster(address):
    sys.exit(str(train_on_ray(dict.fromkeys(names, load_config(config)), Path(folder)) or "") or 0)
"""


def _on_ray(folder: Path, shared: Shared, attack: Callable[[int], int]) -> int:
    """Train two runs on a cluster, attack it meanwhile, and compare the runs with undisturbed ones."""
    config = shared.long / "config.json"
    # Not a fork: gRPC, which the cluster uses in this process, does not survive one.
    words = [sys.executable, "-W", "ignore", "-c", DRIVER, _machines(shared).address, config, folder, *NAMES]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as driver:
        try:
            attacks = attack(driver.pid)
            _, said = driver.communicate(timeout=300)
        finally:
            driver.kill()
    assert driver.returncode == 0, f"the study on Ray ended with {driver.returncode}: {said[-300:]}"
    for name in NAMES:
        assert_same(folder / name, shared.long)
    return attacks


@cache
def _machines(shared: Shared) -> Any:
    """Return a cluster of three nodes on this machine: one that trains nothing, and two that train."""
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": soon, **_SMALL})
    shared.at_end.append(machines.shutdown)
    for _ in range(2):
        _add_node(machines)
    return machines


_SMALL = {"include_dashboard": False, "object_store_memory": 100 * 2**20}


def _add_node(machines: Any) -> None:
    machines.add_node(num_cpus=1, object_store_memory=_SMALL["object_store_memory"])


def _kill_process(process: int | None) -> bool:
    """Kill a process; return whether it was there."""
    if process is None:
        return False
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:  # it had just finished
        return False
    return True


def _wait_for_trainer(folder: Path, child: int) -> int | None:
    """Return the process that trains in a folder, or None if the driver ended before."""
    until = time.monotonic() + 180  # a worker of Ray on a busy machine imports torch for a minute
    while (worker := trainer_of(folder)) is None:
        if (folder / "result.json").exists() or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        assert time.monotonic() < until, f"nothing trains in {folder}"
        time.sleep(0.05)
    return worker
