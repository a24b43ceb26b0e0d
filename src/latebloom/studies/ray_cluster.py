"""A Ray cluster to train on: an existing one, or a local one. Ray is an extra, imported when it is used."""

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
"""Bytes for a local cluster; it shares the file system, so little is sent."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a warning about a future default
}
# Ray replaces 127.0.0.1 by the network address of the machine and listens there; on Linux 127.0.0.2 keeps it local.
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
    """Connect to the cluster at an address, or start a local one that ends with the context."""
    if find_spec("ray") is None:
        raise ConfigError("on: ray needs the package ray, which is not installed; pip install 'latebloom[ray]'")
    if address is not None:
        _check_address(address)
    with environment(**ENVIRONMENT):
        import ray

        if address is not None:
            ray.init(address, **QUIET)
        else:
            own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE, **LOOPBACK}
            ray.init("local", num_cpus=workers or usable_cores(), **own, **QUIET)
    # Ray prints a message for every worker that dies, at any log level; its debugger silences it in the same way.
    vars(import_module("ray._private.worker"))["_worker_logs_enabled"] = False
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Test an address in another process: without an answer Ray logs for minutes, and then ends its process."""
    command = [sys.executable, "-c", TRY_ADDRESS, address]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_CONNECT)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {SECONDS_TO_CONNECT:g} seconds"
    else:
        if result.returncode == 0:
            return
        reason = result.stdout.strip() or f"Ray ended with status {result.returncode}"
    raise ConfigError(f"address: there is no Ray cluster at {address!r}: {reason}")
