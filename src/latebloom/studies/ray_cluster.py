"""A Ray cluster to train on: one that is there, or one of our own. Ray is an extra, imported when it is used."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from latebloom.errors import ConfigError
from latebloom.studies.local import environment, usable_cores

SECONDS_TO_CONNECT = 15.0
QUIET: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
OBJECT_STORE = 200 * 2**20
"""Bytes for a cluster of our own; it shares our file system, so little is sent."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray warns of what it will do one day
}
# Ray takes 127.0.0.1 for this machine's name in its network, and listens there; elsewhere than on Linux it does not.
LOOPBACK = {"_node_ip_address": "127.0.0.2"} if sys.platform == "linux" else {}

TRY_ADDRESS = """
import sys, ray
try:
    ray.init(sys.argv[1], logging_level="CRITICAL", log_to_driver=False)
except BaseException as error:
    print(" ".join(str(error).split())[:300])
    sys.exit(1)
"""


@contextmanager
def ray_cluster(address: str | None = None, workers: int | None = None) -> Iterator[None]:
    """Be connected to the cluster at an address, or to one on this machine that ends with the context."""
    if find_spec("ray") is None:
        raise ConfigError("on: ray takes the package ray, which is not installed; pip install 'latebloom[ray]'")
    if address is not None:
        _try(address)
    with environment(**ENVIRONMENT):
        import ray

        if address is not None:
            ray.init(address, **QUIET)
        else:
            own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE, **LOOPBACK}
            ray.init("local", num_cpus=workers or usable_cores(), **own, **QUIET)
    # Ray tells of every worker that dies, whatever its log level; its debugger silences it in this way.
    vars(import_module("ray._private.worker"))["_worker_logs_enabled"] = False
    try:
        yield
    finally:
        ray.shutdown()


def _try(address: str) -> None:
    """Connect in another process first: where nobody answers Ray talks for minutes, and then ends its process."""
    command = [sys.executable, "-c", TRY_ADDRESS, address]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_CONNECT)
    except subprocess.TimeoutExpired:
        reason = f"nobody answered within {SECONDS_TO_CONNECT:g} seconds"
    else:
        if tried.returncode == 0:
            return
        reason = tried.stdout.strip() or f"Ray ended with status {tried.returncode}"
    raise ConfigError(f"address: there is no Ray cluster to use at {address!r}: {reason}")
