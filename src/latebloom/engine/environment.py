"""The environment of a run: the versions, machine and commit that are needed to reproduce it."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from latebloom.errors import ConfigError, unknown


def describe_environment(seed: int, device: str) -> dict[str, Any]:
    """Return versions, machine, commit and seed as plain data."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "latebloom": _version("latebloom"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "accelerator": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "seed": seed,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def choose_device(name: str | None) -> torch.device:
    """Return the device of this name; without a name, CUDA if it is available, else the CPU."""
    available = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    if name is None:
        return torch.device(available[-1])
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown("device", name, available) from None
    if device.type not in available or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise ConfigError(f"device: {name!r} is not available here; choices: {', '.join(available)}")
    return device


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from the source tree
        return None


@cache
def _commit() -> str | None:
    """Return the commit of the source tree of this package, followed by `+` if files were changed.

    LATEBLOOM_COMMIT sets it for a copy without history, in a container or on a cluster.
    """
    if "LATEBLOOM_COMMIT" in os.environ:
        return os.environ["LATEBLOOM_COMMIT"]

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # An installed copy may be inside another repository, so the file must be tracked.
        git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
